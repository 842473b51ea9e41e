"""The text files of a checkpoint folder, read. Knows nothing of what they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forerun.errors import ModelError


def read_text(path: Path) -> str:
    """The file's text. Raises ModelError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {path}: {error}", hint="is the model's folder complete?") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file; an absent file is an empty one. Raises ModelError."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not JSON: {error}", hint="is the model's folder complete?") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, not an object")
    return value
