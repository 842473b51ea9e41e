"""The thread that writes records to disk. It sees bytes only, never an array. What cannot be written is counted by its reason.

Knows nothing of caches. Memory held by what waits is bounded: beyond it `put` waits for the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from forerun.bank.eviction import EvictingDisk
from forerun.bank.tier.history import MemoAnchor, Memo, Session
from forerun.bank.tier.index import RecordLabel
from forerun.errors import BankError, BankFullError, BankGoneError
from forerun.state.record import Record, RecordInfo

log = logging.getLogger(__name__)

QUEUE_BYTES = 256 << 20
STUCK_S = 30.0
CUT_OFF = "the conversation was taken up again before"


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Something to do with the disk. record, session: what it writes or notes, if that is what it does."""

    do: Callable[[], None]
    record: Record | None = None
    session: Session | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it holds."""
        return self.record.payload.nbytes if self.record else 0


class Writer:
    """Has records put into `room` in the order in which they come. skipped: number of records that could not be written, by reason, until
    turns are written whole again; num_skipped: of all since the start.
    """

    def __init__(self, room: EvictingDisk) -> None:
        self._room, self._index = room, room.disk.index
        self._queue: deque[WriteJob] = deque()
        self._queued_bytes = 0
        self._state = threading.Condition()
        self._is_closing = False
        self._num_done, self._is_stuck = 0, False
        self.skipped: Counter[str] = Counter()
        self.num_skipped, self._num_written, self._known_skipped = 0, 0, 0
        self._thread = threading.Thread(target=self._run, name="bank-writer", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether `put` would wait."""
        return self._queued_bytes >= QUEUE_BYTES

    def put(self, record: Record, label: RecordLabel) -> None:
        """Have the record written. Its label has one time for all of a turn, so that a conversation ages as one.

        Waits while more than QUEUE_BYTES wait already: what is larger than RAM streams through. A request may wait behind this, so a disk
        that does nothing for STUCK_S is not waited for, until it has done something: the record is skipped.
        """
        with self._state:
            while self.is_full and not self._is_stuck:
                self._is_stuck = not self._state.wait_for(partial(self._has_done_more, self._num_done), STUCK_S)
        if self._is_stuck:
            self._count("the disk is stuck", BankError(f"{self._queued_bytes} bytes wait for it"))
        else:
            self._add(WriteJob(partial(self._room.put, record, label), record))

    def touch(self, ranks_s: Mapping[str, float], used_s: float) -> None:
        """Have it noted that records were used, and what their ranks are now."""
        if ranks_s:
            self._add(WriteJob(partial(self._index.touch, ranks_s, used_s)))

    def note_identity(self, root: str, tenant: str, fields: Mapping[str, str]) -> None:
        """Have it noted what the chains that begin at `root` depend on."""
        self._add(WriteJob(partial(self._index.note_identity, root, tenant, fields, time.time())))

    def note(self, session: Session) -> None:
        """Have it noted, after the records put so far, what a conversation consists of. That ends a turn."""
        self._add(WriteJob(partial(self._end_turn, session, self.num_skipped), session=session))

    def note_memo(self, memo: Memo, anchor: MemoAnchor) -> None:
        """Have a memo kept, after the records put so far."""
        self._add(WriteJob(partial(self._index.note_memo, memo, anchor)))

    def note_cut(self, infos: Sequence[RecordInfo]) -> None:
        """Have it noted that these records were never written, since their conversation went on otherwise: no fault, but a reason to miss
        them. After the records put so far.
        """
        if infos:
            self._add(WriteJob(partial(self._index.note_lost, infos, "not stored", CUT_OFF, time.time())))

    @property
    def num_waiting(self) -> int:
        """Records and notes that are not yet safe on disk, the one being written included."""
        return len(self._queue)

    @property
    def num_bytes(self) -> int:
        """Bytes of what waits."""
        return self._queued_bytes

    def flush(self, limit_s: float) -> bool:
        """Wait until nothing waits, at most `limit_s` seconds. Returns whether everything was dealt with."""
        with self._state:
            return self._state.wait_for(lambda: not self._queue, limit_s)

    def waiting(self) -> list[Record]:
        """What waits, the record being written included."""
        with self._state:
            return self._records()

    def noting(self) -> list[Session]:
        """What waits to be noted of conversations, the latest last."""
        with self._state:
            return [work.session for work in self._queue if work.session]

    def wait_for(self, is_wanted: Callable[[Record], bool], limit_s: float) -> bool:
        """Wait for the wanted records to be dealt with, at most `limit_s` seconds. Returns whether some waited and none does now."""

        def waits() -> bool:
            return any(map(is_wanted, self._records()))

        with self._state:
            return waits() and self._state.wait_for(lambda: not waits(), limit_s)

    def close(self) -> None:
        """Stop after the record being written; what waits behind it is dropped."""
        with self._state:
            self._is_closing = True
            self._state.notify_all()
        self._thread.join()

    def _has_done_more(self, num_done: int) -> bool:
        return self._num_done > num_done

    def _records(self) -> list[Record]:
        return [work.record for work in self._queue if work.record]

    def _add(self, work: WriteJob) -> None:
        with self._state:
            self._queue.append(work)
            self._queued_bytes += work.num_bytes
            self._state.notify_all()

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._queue or self._is_closing)
                if self._is_closing:
                    return
                work = self._queue[0]
            self._count_failures(work)
            with self._state:
                self._queue.popleft()
                self._queued_bytes -= work.num_bytes
                self._num_done, self._is_stuck = self._num_done + 1, False
                self._state.notify_all()

    def _end_turn(self, session: Session, num_skipped: int) -> None:
        """num_skipped: how many were when the turn had been put. Records of the next one may have been skipped since."""
        self._index.note_session(session)
        if self._num_written and self.num_skipped == self._known_skipped:
            self.skipped = Counter()
        self._num_written, self._known_skipped = 0, num_skipped

    def _count_failures(self, work: WriteJob) -> None:
        """Do it; a failure is counted and logged, and the thread lives on: what waits behind it is still to be written."""
        info = work.record.info if work.record else None
        try:
            work.do()
        except BankFullError as error:
            self.skip(f"no disk capacity: {error.reason}", error, info)
        except BankGoneError as error:
            self.skip("the folder was removed", error, None)
        except BankError as error:
            self.skip("the disk failed", error, info)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the thread
            self.skip(f"unexpected {type(error).__name__}", error, None)
        else:
            self._num_written += work.record is not None

    def skip(self, reason: str, error: Exception, info: RecordInfo | None) -> None:
        """Count a record that is not written. info: what it would have been, to be told when it is missed."""
        self._count(reason, error)
        if info is not None:
            try:
                self._index.note_lost([info], "not stored", reason, time.time())
            except BankError as unnoted:
                log.warning("not noted: %s", unnoted)

    def _count(self, reason: str, error: Exception) -> None:
        self.skipped[reason] += 1
        self.num_skipped += 1
        log.warning("not written to disk (%s): %s", reason, error)
