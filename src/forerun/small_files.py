"""One way to put a small text file in place of the one before: whole or not at all, for its owner alone. Not for the bank, which survives
power cuts (bank/tier/files.py).
"""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, text: str) -> None:
    """Make `path` hold `text`, mode 0600, and its folder if it is not there (0700). Several processes may do so. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
    beside.replace(path)
