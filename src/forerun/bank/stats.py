"""The bank's figures, for health and metrics. Changes nothing. May be called from any thread."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from forerun.bank.ram import Ram
from forerun.bank.saver import DiskSaver
from forerun.bank.stored import usable_keys
from forerun.bank.tier.disk import DiskTier
from forerun.errors import BankError
from forerun.values import BankHealth


class StoredCounts(NamedTuple):
    """Figures from the indexes, as of the last query, under their names in BankHealth. sessions: on disk, or in RAM only."""

    sessions: int
    disk_bytes: int
    written_today_bytes: int
    pinned_sessions: int
    pinned_bytes: int


class BankStats:
    """Of one bank. saver: None without a disk."""

    def __init__(self, ram: Ram, saver: DiskSaver | None) -> None:
        self._ram, self._saver = ram, saver
        self._counts = StoredCounts(0, 0, 0, 0, 0)

    @property
    def ram_bytes(self) -> int:
        """Bytes of conversations in RAM, those in the write queue included."""
        return self._ram.held_bytes + (self._saver.writer.num_bytes if self._saver else 0)

    def health(self) -> BankHealth:
        """All figures; an index that fails is named in `failure`."""
        pending = sum(len(x.pending) for x in self._ram.live)  # before the queue, into which units move
        waiting = self._saver.writer.num_waiting if self._saver else 0
        disk, failure = self._disk, self._count()
        return BankHealth(
            **self._counts._asdict(),
            live_sessions=len(self._ram.live),
            pending_writes=pending + waiting,
            ram_bytes=self.ram_bytes,
            disk_limit_bytes=disk.limit_bytes if disk else 0,
            daily_write_limit_bytes=disk.daily_limit_bytes if disk else 0,
            quarantined=disk.quarantined if disk else 0,
            failure=failure,
        )

    @property
    def skipped(self) -> dict[str, int]:
        """Number of records that could not be written, by reason; empty again once turns are written completely."""
        return dict(self._saver.writer.skipped) if self._saver else {}

    @property
    def num_unwritten(self) -> int:
        """Number of records that could not be written since the start."""
        return self._saver.writer.num_skipped if self._saver else 0

    @property
    def _disk(self) -> DiskTier | None:
        return self._saver.disk if self._saver else None

    def _count(self) -> str:
        """Query the indexes. Returns why that failed, "" if it did not."""
        try:
            in_ram = {(x.tenant, x.session) for x in self._ram.live}
            self._counts = _counts(self._disk, in_ram) if self._disk else StoredCounts(len(in_ram), 0, 0, 0, 0)
        except BankError as error:
            return str(error)
        return ""


def _counts(disk: DiskTier, in_ram: Collection[tuple[str, str]]) -> StoredCounts:
    index, pinned = disk.index, disk.index.pinned_sessions()
    pinned_bytes = index.bytes_of(usable_keys(index, pinned))
    return StoredCounts(index.num_sessions(in_ram), disk.num_bytes, disk.written_today_bytes, len(pinned), pinned_bytes)
