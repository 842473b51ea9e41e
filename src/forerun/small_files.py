"""Small text files, replaced whole or not at all, readable by their owner alone. Not for the bank, which must survive power cuts
(bank/tier/files.py).
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)


def put(path: Path, text: str) -> None:
    """Make `path` hold `text`, mode 0600, and create its folder (0700) if missing. Safe with several writers. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # a process id is not unique: containers share folders
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def keep(path: Path, text: str) -> None:
    """`put` for a file that only saves work at the next start: a failed write is logged, not raised."""
    try:
        put(path, text)
    except OSError as error:
        log.warning("%s cannot be written, and what it would save is done at every start: %s", path, error)
