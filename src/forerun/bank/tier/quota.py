"""How many bytes the bank's folder may hold, from the settings and the disk's free bytes, and how many it does hold.

Counted are the file sizes in the index, plus the differences of files without a row or of another length: opening lists no records. Knows
nothing of what the files hold.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from forerun.bank.tier import files
from forerun.bank.tier.format import file_bytes
from forerun.bank.tier.index import Index
from forerun.config import Config
from forerun.errors import ConfigError
from forerun.machine import free_bytes
from forerun.state.record import SEGMENT_TOKENS
from forerun.state.spec import StateSpec

log = logging.getLogger(__name__)

DISK_LIMIT_BYTES = 20 << 30
DAILY_WRITE_BYTES = 200 << 30
# By which the index may grow until the quota is next checked: its log, and the pages that the log adds to the database.
INDEX_SLACK_BYTES = 2 << 20


def disk_limit(config: Config, held_bytes: int) -> int:
    """Bytes that the bank's folder may hold: as set, else the lesser of DISK_LIMIT_BYTES and a tenth of the bytes that are free or held by
    the folder.
    """
    if config.bank_disk_bytes is not None:
        return config.bank_disk_bytes
    return min(DISK_LIMIT_BYTES, (free_bytes(config.bank_path) + held_bytes) // 10)


def held_bytes(config: Config) -> int:
    """Bytes in the bank's folder, 0 if there is none. Looks at every file: for processes that do not hold the folder."""
    return sum(size for _, size in files.sizes(config.bank_path))


def daily_limit(config: Config) -> int:
    """Bytes that may be written per day: as set, else the lesser of DAILY_WRITE_BYTES and half of the disk's free bytes."""
    if config.bank_daily_write_bytes is not None:
        return config.bank_daily_write_bytes
    return min(DAILY_WRITE_BYTES, free_bytes(config.bank_path) // 2)


def check_disk_limit(config: Config, spec: StateSpec, limit_bytes: int) -> None:
    """Raises ConfigError if the limit is set too low to store any conversation; logs a warning if the disk is too full to."""
    needed_bytes = INDEX_SLACK_BYTES + SEGMENT_TOKENS * spec.bytes_per_token + 2 * spec.bytes_per_snapshot
    if limit_bytes >= needed_bytes:
        return
    if config.bank_disk_bytes is not None:
        found = f"bank_disk_bytes = {limit_bytes}: this model's conversations need {needed_bytes:,} bytes at least"
        raise ConfigError(found, hint="set more, or 0 to store nothing on disk")
    log.warning("the disk is nearly full: %d bytes are too few for any of this model's conversations", limit_bytes)


class DiskUsage:
    """Counts the folder's bytes. A changed or found file becomes dirty, and is measured when the sum is next needed."""

    def __init__(self, records: Path, index: Index) -> None:
        self._records, self._index = records, index
        self._dirty: set[Path] = set()
        self._differences: dict[Path, int] = {}
        self._lock = threading.Lock()

    def mark_dirty(self, *paths: Path) -> None:
        """These files may have changed."""
        with self._lock:
            self._dirty.update(set(paths) - set(self._index.paths))

    @property
    def num_bytes(self) -> int:
        """Bytes of all files seen so far, those of the index included. Exact while no call is in progress."""
        with self._lock:
            self._measure()
            return self._index.totals.record_bytes + sum(self._differences.values()) + self._index.num_bytes

    def _measure(self) -> None:
        rows = self._index.find({path.name for path in self._dirty})
        for path in self._dirty:
            row = rows.get(path.name) if path.parent.parent == self._records else None
            with files.explained(f"cannot measure {path}"):
                difference = files.occupied(path) - (file_bytes(row) if row else 0)
            if difference:
                self._differences[path] = difference
            else:
                self._differences.pop(path, None)
        self._dirty.clear()
