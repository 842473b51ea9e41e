"""Bytes that this process reads and writes, as the system counts them (Linux), and those that go through SQLite's log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.bank.tier import database

_FRAME_HEAD_BYTES, _LOG_HEAD_BYTES = 24, 32
# Of the log's shared memory (sqlite.org/walformat.html): page size as 16 bits at 14, last frame at 16, salts at 32.
_PAGE, _LAST, _SALTS = 14, 16, slice(32, 40)


def counted() -> dict[str, int]:
    """rchar and wchar: bytes of all calls that read and write; read_bytes: those that came from the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


class Log:
    """Bytes written to the log of the index in `folder` since `watch` began: looked at after every transaction, so that none is missed."""

    def __init__(self, folder: Path) -> None:
        self._shared, self.num_bytes = folder / "index.db-shm", 0
        self._salts, self._last = b"", 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count while the block runs."""
        plain = database.transaction

        @contextmanager
        def looked_at(*given: object) -> Iterator[None]:
            with plain(*given):  # type: ignore[arg-type]
                yield
            self.look()

        database.transaction = looked_at  # type: ignore[assignment]
        try:
            self.look()
            self.num_bytes = 0
            yield
        finally:
            database.transaction = plain

    def look(self) -> None:
        """Add what came since the last look."""
        head = self._shared.read_bytes()[:48] if self._shared.exists() else bytes(48)
        (page_bytes,), (last,), salts = struct.unpack_from("<H", head, _PAGE), struct.unpack_from("<I", head, _LAST), head[_SALTS]
        begun = salts != self._salts or last < self._last
        self.num_bytes += (last - (0 if begun else self._last)) * (page_bytes + _FRAME_HEAD_BYTES) + _LOG_HEAD_BYTES * begun
        self._salts, self._last = salts, last
