"""The thread that writes records to disk. It sees bytes only, never an array. What cannot be written is counted by its reason.

Knows nothing of caches. Memory held by what waits is bounded: `put` blocks the caller beyond it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial

from forerun.bank.disk import DiskTier
from forerun.bank.index import Label
from forerun.errors import BankError, BankFullError
from forerun.state.record import Record

log = logging.getLogger(__name__)

QUEUE_BYTES = 256 << 20
_EVICT_AT_ONCE = 8


class Writer:
    """Writes records to a disk tier in the order in which they come, making room for them by evicting the oldest.

    bytes_written: since the start. skipped: number of records that could not be written, by reason.
    """

    def __init__(self, disk: DiskTier) -> None:
        self._disk = disk
        self._queue: deque[tuple[Record, Label]] = deque()
        self._used: deque[tuple[Mapping[str, float], float]] = deque()
        self._queued_bytes = 0
        self._state = threading.Condition()
        self._is_closing = False
        self.bytes_written = 0
        self.skipped: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="bank-writer", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether `put` would wait."""
        return self._queued_bytes >= QUEUE_BYTES

    def put(self, record: Record, label: Label) -> None:
        """Have the record written. Its label has one time for all of a turn, so that a conversation ages as one.

        Waits while more than QUEUE_BYTES wait already.
        """
        with self._state:
            self._state.wait_for(lambda: not self.is_full)
            self._queue.append((record, label))
            self._queued_bytes += record.payload.nbytes
            self._state.notify_all()

    def touch(self, ranks_s: Mapping[str, float], used_s: float) -> None:
        """Have it noted that records were used, and what their ranks are now."""
        with self._state:
            self._used.append((ranks_s, used_s))
            self._state.notify_all()

    @property
    def num_waiting(self) -> int:
        """Records that are not yet safe on disk, the one being written included."""
        return len(self._queue)

    @property
    def num_bytes(self) -> int:
        """Bytes of what waits."""
        return self._queued_bytes

    def flush(self, limit_s: float) -> bool:
        """Wait until nothing waits, at most `limit_s` seconds. Returns whether everything was dealt with."""
        with self._state:
            return self._state.wait_for(lambda: not self._queue and not self._used, limit_s)

    def waiting(self) -> list[Record]:
        """What waits, the record being written included."""
        with self._state:
            return [queued[0] for queued in self._queue]

    def wait_for(self, is_wanted: Callable[[Record], bool], limit_s: float) -> bool:
        """Wait for the wanted records to be dealt with, at most `limit_s` seconds. Returns whether some waited and none does now."""

        def waits() -> bool:
            return any(is_wanted(queued[0]) for queued in self._queue)

        with self._state:
            return waits() and self._state.wait_for(lambda: not waits(), limit_s)

    def close(self) -> None:
        """Stop after the record being written; what waits behind it is dropped."""
        with self._state:
            self._is_closing = True
            self._state.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._queue or self._used or self._is_closing)
                if self._is_closing:
                    return
                job = self._queue[0] if self._queue else None
                used = self._used[0] if self._used else None
            if used is not None:
                self._count_failures(partial(self._disk.index.touch, *used))
            if job is not None:
                self._count_failures(partial(self._write, *job))
            with self._state:
                if used is not None:
                    self._used.popleft()
                if job is not None:
                    self._queue.popleft()
                    self._queued_bytes -= job[0].payload.nbytes
                self._state.notify_all()

    def _write(self, record: Record, label: Label) -> None:
        while True:
            try:
                self._disk.put(record)
                break
            except BankFullError as error:
                if error.reason != "quota" or not self._evict(label.rank_s):
                    raise
        self.bytes_written += record.payload.nbytes
        self._disk.index.label(record.key, label)
        if record.kind == "segment":
            self._drop_shorter(record)

    def _drop_shorter(self, record: Record) -> None:
        """A shorter tail at the same place holds nothing that this segment does not hold."""
        for info in self._disk.index.along("segment", record.parent, record.tokens):
            if info.key != record.key:
                self._disk.delete(info.key)

    def _evict(self, below_rank_s: float) -> bool:
        """Make some room: what was set aside first, then what ranks lowest, but nothing that ranks as high as what is to be written (a
        conversation larger than the quota would eat its own beginning). Returns whether there was anything.
        """
        if self._disk.quarantined:
            self._disk.clear_quarantine()
            return True
        lowest = [entry for entry in self._disk.index.lowest(_EVICT_AT_ONCE) if entry.rank_s < below_rank_s]
        for entry in lowest:
            self._disk.delete(entry.info.key)
        return bool(lowest)

    def _count_failures(self, action: Callable[[], None]) -> None:
        """Do it; a failure is counted and logged, and the thread lives on: what waits behind it is still to be written."""
        try:
            action()
        except BankFullError as error:
            self.skip(f"no room: {error.reason}", error)
        except BankError as error:
            self.skip("the disk failed", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the thread
            self.skip(f"unexpected {type(error).__name__}", error)

    def skip(self, reason: str, error: Exception) -> None:
        """Count a record that is not written."""
        self.skipped[reason] += 1
        log.warning("not written to disk (%s): %s", reason, error)
