"""The text files of a checkpoint: in a folder, or derived from a GGUF file. Knows nothing of their meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forerun.errors import ModelError
from forerun.text.gguf import is_gguf
from forerun.text.gguf_files import text_files


def exists(path: Path) -> bool:
    """Whether the checkpoint `path.parent` has this file."""
    return path.name in text_files(path.parent) if is_gguf(path.parent) else path.exists()


def read_text(path: Path) -> str:
    """The file's text. Raises ModelError."""
    if is_gguf(path.parent):
        return text_files(path.parent)[path.name]
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {path}: {error}", hint="is the model's folder complete?") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file, {} if the file is absent. Raises ModelError."""
    if not exists(path):
        return {}
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not JSON: {error}", hint="is the model's folder complete?") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, not an object")
    return value
