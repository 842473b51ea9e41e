"""One way to put a small text file in place of the one before: whole or not at all, for its owner alone. Not for the bank, which survives
power cuts (bank/tier/files.py).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


def put(path: Path, text: str) -> None:
    """Make `path` hold `text`, mode 0600, and its folder if it is not there (0700). Several processes may do so. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
    beside.replace(path)


def keep(path: Path, text: str) -> None:
    """`put` for what only saves work the next time: a disk that does not take it is told of, and the work is done again then."""
    try:
        put(path, text)
    except OSError as error:
        log.warning("%s cannot be written, and what it would save is done at every start: %s", path, error)
