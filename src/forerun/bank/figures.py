"""What the bank holds, in figures for people. Asks all that holds something; decides nothing. May be called from any thread."""

from __future__ import annotations

from typing import NamedTuple

from forerun.bank.live import Lives
from forerun.bank.saving import Saving
from forerun.bank.stored import usable_keys
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.memory import MemoryTier
from forerun.errors import BankError
from forerun.values import BankHealth


class Counted(NamedTuple):
    """What the index of the disk said when it was last asked."""

    sessions: int
    disk_bytes: int
    written_today_bytes: int
    pinned_sessions: int
    pinned_bytes: int


class Figures:
    """Of one bank. disk and saving are None if nothing survives the process."""

    def __init__(self, lives: Lives, memory: MemoryTier, disk: DiskTier | None, saving: Saving | None) -> None:
        self._lives, self._memory, self._disk, self._saving = lives, memory, disk, saving
        self._counted = Counted(0, 0, 0, 0, 0)

    @property
    def held_bytes(self) -> int:
        """Bytes of live conversations and of records in RAM."""
        return sum(x.num_bytes for x in self._lives) + self._memory.num_bytes

    @property
    def ram_bytes(self) -> int:
        """Bytes of conversations in RAM, those that wait for the disk included."""
        return self.held_bytes + (self._saving.writer.num_bytes if self._saving else 0)

    def health(self) -> BankHealth:
        """All figures. An index that fails is told in `failure`."""
        pending = sum(len(x.pending) for x in self._lives)  # before what waits: in between a unit may pass from the one to the other
        waiting = self._saving.writer.num_waiting if self._saving else 0
        disk, failure = self._disk, self._count()
        return BankHealth(
            sessions=self._counted.sessions,
            live_sessions=len(self._lives),
            pending_writes=pending + waiting,
            ram_bytes=self.ram_bytes,
            disk_bytes=self._counted.disk_bytes,
            disk_limit_bytes=disk.limit_bytes if disk else 0,
            written_today_bytes=self._counted.written_today_bytes,
            daily_write_limit_bytes=disk.daily_limit_bytes if disk else 0,
            pinned_sessions=self._counted.pinned_sessions,
            pinned_bytes=self._counted.pinned_bytes,
            quarantined=disk.quarantined if disk else 0,
            failure=failure,
        )

    def _count(self) -> str:
        """Ask the index for the figures that it alone knows. Returns why it could not be asked, "" if it could."""
        disk = self._disk
        try:
            self._counted = Counted(self._sessions(), *_counted(disk)) if disk else Counted(self._sessions(), 0, 0, 0, 0)
        except BankError as error:
            return str(error)
        return ""

    def _sessions(self) -> int:
        """Conversations on disk, and those in RAM that are not there."""
        in_ram = {(x.tenant, x.session) for x in self._lives} | {(x.tenant, x.id) for x in self._memory.index.all_sessions()}
        return self._disk.index.num_sessions(in_ram) if self._disk else len(in_ram)


def _counted(disk: DiskTier) -> tuple[int, int, int, int]:
    """Bytes on disk and written today; pinned conversations, and bytes of what they need."""
    pinned = disk.index.pinned_sessions()
    return disk.num_bytes, disk.written_today_bytes, len(pinned), disk.index.bytes_of(usable_keys(disk.index, pinned))
