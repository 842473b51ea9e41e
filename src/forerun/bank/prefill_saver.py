"""Saves the state of a prompt while it is prefilled, so that a crash after the first token loses at most its last unit.

Runs on the thread that owns MLX. Knows nothing of chunks or requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator

from forerun.bank import policy
from forerun.bank.live import CaptureUnit, LiveConversation
from forerun.bank.running_turns import RunningTurn
from forerun.bank.saver import DiskSaver
from forerun.errors import BankError
from forerun.state.cache import Snapshot

SAVING_FRAC = 0.03  # of the time of the prefill, at most, for capturing: what does not fit is captured after the answer


class PrefillSaver:
    """Saves one prompt's rows, and its snapshots up to `message_end`.

    live: holds all tokens of the prompt; its cache holds those prefilled so far, and `save` adds its snapshots. Never restored from.
    running: its turn, of which nothing more is saved once its conversation is removed.
    """

    def __init__(self, saver: DiskSaver, live: LiveConversation, message_end: int, running: RunningTurn) -> None:
        self._saver, self._live, self._message_end, self._running = saver, live, message_end, running
        segments = list(live.units([]))
        self._keys = [unit.info.key for unit in segments]
        try:
            stored = saver.stored_keys(self._keys)
        except BankError:  # all is written again, which costs time only
            stored = set()
        self._segments = deque(unit for unit in segments if unit.info.key not in stored)
        self._snapshots: deque[CaptureUnit] = deque()
        self._start_s, self._spent_s = time.monotonic(), 0.0

    def save(self, snapshots: Collection[Snapshot]) -> None:
        """Capture the units that the cache holds by now, within SAVING_FRAC of the time since the start. snapshots: new ones, in order."""
        if self._running.is_removed:
            return
        self._live.snapshots += snapshots
        wanted = policy.for_disk([s.position for s in snapshots], self._message_end)
        self._snapshots += [self._live.snapshot_unit(s) for s in snapshots if s.position in wanted and s.position <= self._message_end]
        for unit in self._ready():
            if self._saver.writer.is_full or self._spent_s > SAVING_FRAC * (time.monotonic() - self._start_s):
                return
            start_s = time.thread_time()  # a busy machine that halts this thread costs the prefill as much without saving
            self._saver.write(self._live, unit)
            self._spent_s += time.thread_time() - start_s
            (self._segments if unit.snapshot is None else self._snapshots).popleft()
            if unit.snapshot is not None:
                self._note(unit)

    def _ready(self) -> Iterator[CaptureUnit]:
        """Units whose rows are in the cache, each snapshot after the segments that it needs."""
        while self._segments and self._segments[0].info.stop <= self._live.cache.length:
            yield self._segments[0]
        while self._snapshots and (not self._segments or self._segments[0].info.start >= self._snapshots[0].info.stop):
            yield self._snapshots[0]

    def _note(self, snapshot: CaptureUnit) -> None:
        """Have the conversation noted as it can be resumed at the snapshot."""
        self._keys.append(snapshot.info.key)
        covered = [key for key in self._keys if key not in {unit.info.key for unit in self._segments}]
        self._live.session_row = self._live.session_of(covered)
        self._saver.note(self._live)
