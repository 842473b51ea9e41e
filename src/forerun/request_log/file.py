"""The request log's file and its rotated predecessors: appended to, within a total size limit. Knows lines of text."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging import LogRecord, makeLogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path

from forerun import small_files
from forerun.errors import ConfigError, ForerunError

NUM_FILES = 4
log = logging.getLogger(__name__)


def read_lines(path: Path) -> list[str]:
    """All lines of a log, the oldest file's first. Bytes that are not UTF-8, as in a truncated line, become U+FFFD.

    Raises ForerunError if there is no such file.
    """
    *older, last = _all(path)
    try:
        return [line for each in (*filter(Path.exists, older), last) for line in _lines(each)]
    except OSError as error:
        raise ForerunError(
            f"cannot read {path}: {error.strerror}", hint="a server writes this file: see --request-log of `forerun serve`"
        ) from error


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Replace each line of a log, rotated files included, by `change(line)`; "" deletes it. Each file is replaced atomically."""
    for each in filter(Path.exists, _all(path)):
        changed = [new for line in _lines(each) if (new := change(line))]
        small_files.put(each, "".join(f"{line}\n" for line in changed))


def _all(path: Path) -> list[Path]:
    """The paths of a log's files, the oldest first."""
    return [*(path.with_name(f"{path.name}.{number}") for number in range(NUM_FILES - 1, 0, -1)), path]


def _lines(path: Path) -> list[str]:
    """The lines of one file. Only "\\n" ends a line: JSON escapes it in texts, but not Unicode's other line breaks."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]


class LogFile:
    """Appends lines to `path`; a full file is rotated to PATH.1 and so on, the oldest is deleted. Mode 0600.

    One process per file. A failed write loses lines, never a request. Raises ConfigError if the file cannot be opened.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        file_bytes = max(1, limit_bytes // NUM_FILES)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sink = _PrivateFile(path, maxBytes=file_bytes, backupCount=NUM_FILES - 1, encoding="utf-8")
        except OSError as error:
            hint = "--request-log sets another file, --request-log-bytes 0 turns the log off"
            raise ConfigError(f"the request log cannot be written: {path}: {error.strerror}", hint=hint) from error

    def append(self, line: str) -> None:
        """Write one line, from any thread."""
        self._sink.handle(makeLogRecord({"msg": line}))

    def rewrite(self, change: Callable[[str], str]) -> None:
        """As the function `rewrite`; appends meanwhile block."""
        with self._sink.paused():
            rewrite(Path(self._sink.baseFilename), change)

    def close(self) -> None:
        """Close the file. Do not append afterwards."""
        self._sink.close()


class _PrivateFile(RotatingFileHandler):
    @contextmanager
    def paused(self) -> Iterator[None]:
        """Close the file and block writers while the block runs."""
        with self.lock:  # type: ignore[union-attr]
            if self.stream:
                self.stream.close()
            self.stream = None  # the next append reopens it
            yield

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(descriptor, self.mode, encoding=self.encoding)  # type: ignore[return-value]

    def handleError(self, record: LogRecord) -> None:  # noqa: N802 - its name in logging
        log.warning("a line of the request log is lost: %s", sys.exc_info()[1])
