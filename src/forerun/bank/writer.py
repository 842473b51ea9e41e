"""The thread that writes records to disk. It handles bytes only, never arrays. Records that cannot be written are counted by reason.

The queue's memory is bounded: beyond QUEUE_BYTES `put` waits for the disk. Knows nothing of caches.
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
from forerun.bank.tier.history import Memo, MemoAnchor, Session
from forerun.bank.tier.index import RecordLabel
from forerun.errors import BankError, BankFullError, BankGoneError
from forerun.state.record import Record, RecordInfo

log = logging.getLogger(__name__)

QUEUE_BYTES = 256 << 20
STUCK_S = 30.0
CUT_OFF = "the conversation was edited before it was written"


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One queued operation on the disk. record, session: what it writes, if anything."""

    do: Callable[[], None]
    record: Record | None = None
    session: Session | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it holds in the queue."""
        return self.record.payload.nbytes if self.record else 0


class Writer:
    """Writes to `evicting` in the order of the calls. skipped: number of records that could not be written, by reason, until turns are
    written completely again; num_skipped: since the start.
    """

    def __init__(self, evicting: EvictingDisk) -> None:
        self._evicting, self._index = evicting, evicting.disk.index
        self._queue: deque[WriteJob] = deque()
        self._queued_bytes = 0
        self._state = threading.Condition()
        self._is_closing = False
        self._num_done, self._is_stuck = 0, False
        self.skipped: Counter[str] = Counter()
        self.num_skipped, self._num_written, self._skipped_before = 0, 0, 0
        self._thread = threading.Thread(target=self._run, name="bank-writer", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether `put` would wait."""
        return self._queued_bytes >= QUEUE_BYTES

    def put(self, record: Record, label: RecordLabel) -> None:
        """Queue the record. Its label has the same time for all of a turn, so that a conversation ages as one.

        Waits while QUEUE_BYTES or more are queued: what is larger than RAM streams through. A request may wait behind this, so records are
        skipped once the disk has done nothing for STUCK_S, until it makes progress again.
        """
        with self._state:
            while self.is_full and not self._is_stuck:
                self._is_stuck = not self._state.wait_for(partial(self._has_done_more, self._num_done), STUCK_S)
        if self._is_stuck:
            self._count("the disk is stuck", BankError(f"{self._queued_bytes} bytes are queued"))
        else:
            self._add(WriteJob(partial(self._evicting.put, record, label), record))

    def touch(self, ranks_s: Mapping[str, float], used_s: float) -> None:
        """Queue a note that records were used, with their new ranks by key."""
        if ranks_s:
            self._add(WriteJob(partial(self._index.touch, ranks_s, used_s)))

    def note_identity(self, root: str, tenant: str, fields: Mapping[str, str]) -> None:
        """Queue a note of the identity of the chains under `root`."""
        self._add(WriteJob(partial(self._index.note_identity, root, tenant, fields, time.time())))

    def note(self, session: Session) -> None:
        """Queue a conversation's row, behind the records put so far. This ends a turn."""
        self._add(WriteJob(partial(self._end_turn, session, self.num_skipped), session=session))

    def note_memo(self, memo: Memo, anchor: MemoAnchor) -> None:
        """Queue a memo, behind the records put so far."""
        self._add(WriteJob(partial(self._index.note_memo, memo, anchor)))

    def note_cut(self, infos: Sequence[RecordInfo]) -> None:
        """Queue a note that these records were not written because their conversation was edited: the reason of a later miss."""
        if infos:
            self._add(WriteJob(partial(self._index.note_lost, infos, "not stored", CUT_OFF, time.time())))

    @property
    def num_waiting(self) -> int:
        """Queued records and notes, the one being written included."""
        return len(self._queue)

    @property
    def num_bytes(self) -> int:
        """Bytes in the queue."""
        return self._queued_bytes

    def flush(self, limit_s: float) -> bool:
        """Wait until what is queued now is done, at most `limit_s` seconds. Returns whether it is."""
        with self._state:
            return self._state.wait_for(partial(self._has_done_more, self._num_done + len(self._queue) - 1), limit_s)

    def waiting(self) -> list[Record]:
        """Queued records, the one being written included."""
        with self._state:
            return [job.record for job in self._queue if job.record]

    def noting(self) -> list[Session]:
        """Queued rows of conversations, the latest last."""
        with self._state:
            return [job.session for job in self._queue if job.session]

    def close(self) -> None:
        """Stop after the operation in progress; the rest of the queue is dropped."""
        with self._state:
            self._is_closing = True
            self._state.notify_all()
        self._thread.join()

    def _has_done_more(self, num_done: int) -> bool:
        return self._num_done > num_done

    def _add(self, job: WriteJob) -> None:
        with self._state:
            self._queue.append(job)
            self._queued_bytes += job.num_bytes
            self._state.notify_all()

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._queue or self._is_closing)
                if self._is_closing:
                    return
                job = self._queue[0]
            self._do(job)
            with self._state:
                self._queue.popleft()
                self._queued_bytes -= job.num_bytes
                self._num_done, self._is_stuck = self._num_done + 1, False
                self._state.notify_all()

    def _end_turn(self, session: Session, num_skipped: int) -> None:
        """num_skipped: as of when the turn was queued; records of the next one may have been skipped since."""
        self._index.note_session(session)
        if self._num_written and self.num_skipped == self._skipped_before:
            self.skipped = Counter()
        self._num_written, self._skipped_before = 0, num_skipped

    def _do(self, job: WriteJob) -> None:
        """Do it. A failure is counted and logged, and the thread continues with the rest of the queue."""
        info = job.record.info if job.record else None
        try:
            job.do()
        except BankFullError as error:
            self.skip(f"no disk capacity: {error.reason}", error, info)
        except BankGoneError as error:
            self.skip("the folder was removed", error, None)
        except BankError as error:
            self.skip("the disk failed", error, info)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the thread
            self.skip(f"unexpected {type(error).__name__}", error, None)
        else:
            self._num_written += job.record is not None

    def skip(self, reason: str, error: Exception, info: RecordInfo | None) -> None:
        """Count a record that is not written. info: noted as the reason of a later miss."""
        self._count(reason, error)
        if info is not None:
            try:
                self._index.note_lost([info], "not stored", reason, time.time())
            except BankError as unnoted:
                log.warning("loss of a record not noted: %s", unnoted)

    def _count(self, reason: str, error: Exception) -> None:
        self.skipped[reason] += 1
        self.num_skipped += 1
        log.warning("not written to disk (%s): %s", reason, error)
