"""The thread that writes records to disk. It sees bytes only, never an array. What cannot be written is counted by its reason.

Knows nothing of caches. Memory held by what waits is bounded: `put` blocks the caller beyond it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

from forerun.bank.disk import DiskTier
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
        self._queue: deque[tuple[Record, str, str, float]] = deque()
        self._used: deque[Sequence[str]] = deque()
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

    def put(self, record: Record, *, session: str, tenant: str, used_s: float) -> None:
        """Have the record written, as used at `used_s` (Unix seconds): the same for all of a turn, so that a chain ages as one.

        Waits while more than QUEUE_BYTES wait already.
        """
        with self._state:
            self._state.wait_for(lambda: not self.is_full)
            self._queue.append((record, session, tenant, used_s))
            self._queued_bytes += record.payload.nbytes
            self._state.notify_all()

    def touch(self, keys: Sequence[str]) -> None:
        """Have it noted that records were used."""
        with self._state:
            self._used.append(keys)
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
                keys = self._used[0] if self._used else None
            if keys is not None:
                self._count_failures(partial(self._disk.index.touch, keys, time.time()))
            if job is not None:
                self._count_failures(partial(self._write, *job))
            with self._state:
                if keys is not None:
                    self._used.popleft()
                if job is not None:
                    self._queue.popleft()
                    self._queued_bytes -= job[0].payload.nbytes
                self._state.notify_all()

    def _write(self, record: Record, session: str, tenant: str, used_s: float) -> None:
        while True:
            try:
                self._disk.put(record)
                break
            except BankFullError as error:
                if error.reason != "quota" or not self._evict():
                    raise
        self.bytes_written += record.payload.nbytes
        self._disk.index.label([record.key], session=session, tenant=tenant)
        self._disk.index.touch([record.key], used_s)
        if record.kind == "segment":
            self._drop_shorter(record)

    def _drop_shorter(self, record: Record) -> None:
        """A shorter tail at the same place holds nothing that this segment does not hold."""
        for info in self._disk.index.along("segment", record.parent, record.tokens):
            if info.key != record.key:
                self._disk.delete(info.key)

    def _evict(self) -> bool:
        """Make some room: what was set aside first, then the oldest. Returns whether there was anything."""
        if self._disk.quarantined:
            self._disk.clear_quarantine()
            return True
        oldest = self._disk.index.oldest(_EVICT_AT_ONCE)
        for entry in oldest:
            self._disk.delete(entry.info.key)
        return bool(oldest)

    def _count_failures(self, action: Callable[[], None]) -> None:
        """Do it; a failure is counted and logged, and the thread lives on: what waits behind it is still to be written."""
        try:
            action()
        except BankFullError as error:
            self._count(f"no room: {error.reason}", error)
        except BankError as error:
            self._count("the disk failed", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the thread
            self._count(f"unexpected {type(error).__name__}", error)

    def _count(self, reason: str, error: Exception) -> None:
        self.skipped[reason] += 1
        log.warning("not written to disk (%s): %s", reason, error)
