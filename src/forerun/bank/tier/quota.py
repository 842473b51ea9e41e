"""How much the bank's folder may hold, from the settings and the disk itself, and how much it does.

Counted is what the rows say of the records' files, and the difference that files make without a row, or that are not as long as their row
says: nothing is listed at opening. Knows nothing of what the files hold.
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
# What the index may grow by until the next look at the quota: its log, and the pages that the log brings to the database.
INDEX_SLACK_BYTES = 2 << 20


def disk_limit(config: Config, held_bytes: int) -> int:
    """Bytes that the bank's folder may hold: as set, else the lesser of DISK_LIMIT_BYTES and a tenth of what is free without what it holds
    already.
    """
    if config.bank_disk_bytes is not None:
        return config.bank_disk_bytes
    return min(DISK_LIMIT_BYTES, (free_bytes(config.bank_path) + held_bytes) // 10)


def held_bytes(config: Config) -> int:
    """Bytes that the bank's folder holds; none if it is not there. For who does not hold it: it looks at every file."""
    return sum(size for _, size in files.sizes(config.bank_path))


def daily_limit(config: Config) -> int:
    """Bytes that may be written a day: as set, else the lesser of DAILY_WRITE_BYTES and half of the disk's free space."""
    if config.bank_daily_write_bytes is not None:
        return config.bank_daily_write_bytes
    return min(DAILY_WRITE_BYTES, free_bytes(config.bank_path) // 2)


def check_disk_limit(config: Config, spec: StateSpec, limit_bytes: int) -> None:
    """Raises ConfigError for a limit, as set, within which nothing could be kept; warns of one that the disk dictates."""
    needed_bytes = INDEX_SLACK_BYTES + SEGMENT_TOKENS * spec.bytes_per_token + 2 * spec.bytes_per_snapshot
    if limit_bytes >= needed_bytes:
        return
    if config.bank_disk_bytes is not None:
        found = f"bank_disk_bytes = {limit_bytes}: this model's conversations need {needed_bytes:,} bytes at least"
        raise ConfigError(found, hint="give more, or 0 to keep nothing on disk")
    log.warning("the disk is nearly full: %d bytes for stored conversations keep none of this model's", limit_bytes)


class DiskUsage:
    """Counts bytes. Whoever changes a file, or finds one, says so by `doubt`; it is looked at when a sum is next asked for."""

    def __init__(self, records: Path, index: Index) -> None:
        self._records, self._index = records, index
        self._doubtful: set[Path] = set()
        self._differences: dict[Path, int] = {}
        self._lock = threading.Lock()

    def mark_dirty(self, *paths: Path) -> None:
        """These files may have changed."""
        with self._lock:
            self._doubtful.update(set(paths) - set(self._index.paths))

    @property
    def num_bytes(self) -> int:
        """Bytes of all files known so far, those of the index included. Exact when no call is at work."""
        with self._lock:
            self._look()
            return self._index.totals.record_bytes + sum(self._differences.values()) + self._index.num_bytes

    def _look(self) -> None:
        rows = self._index.find({path.name for path in self._doubtful})
        for path in self._doubtful:
            row = rows.get(path.name) if path.parent.parent == self._records else None
            with files.explained(f"cannot look at {path}"):
                difference = files.occupied(path) - (file_bytes(row) if row else 0)
            if difference:
                self._differences[path] = difference
            else:
                self._differences.pop(path, None)
        self._doubtful.clear()
