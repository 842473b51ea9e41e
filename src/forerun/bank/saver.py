"""Saves live conversations to disk: which units are missing there, and their capture out of the cache, one unit at a time.

Runs on the thread that owns MLX. Knows nothing of prompts or of how records are restored.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from forerun.bank import policy
from forerun.bank.eviction import EvictingDisk
from forerun.bank.live import NOTHING_UNSAVED, CaptureUnit, LiveConversation, LiveConversations, UnsavedState
from forerun.bank.protection import Protections
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.index import RecordLabel
from forerun.bank.writer import Writer
from forerun.errors import BankError
from forerun.state.cache import Snapshot
from forerun.state.spec import StateSpec

HAND_OVER_S = 0.5  # for which a request waits at most for the saving of the conversation that it continues
NO_COPY = (MemoryError, RuntimeError, ValueError)  # what copying rows out of a cache may raise


class DiskSaver:
    """Has live conversations written to a disk tier. evicting: the same disk, for what else writes there."""

    def __init__(self, disk: DiskTier, spec: StateSpec, live: LiveConversations, protections: Protections) -> None:
        self._live = live
        self.disk, self.evicting = disk, EvictingDisk(disk, lambda: [x.session_row for x in live if x.session_row], protections)
        self.writer = Writer(self.evicting)
        self._snapshot_cost_tokens = spec.snapshot_tokens
        self._noted_roots: set[str] = set()

    def begin(self, live: LiveConversation, snapshots: Collection[Snapshot], unsaved: UnsavedState) -> None:
        """Make pending what is neither on disk nor queued of the conversation's rows, of `snapshots` and of `unsaved`.

        The rest is noted as used: a conversation ages as one, its beginning not before its end. If the index fails, all is written again,
        which costs time only.
        """
        if live.hasher.root not in self._noted_roots:
            self._noted_roots.add(live.hasher.root)
            self.writer.note_identity(live.hasher.root, live.tenant, live.hasher.identity.fields)
        wanted = {s.position for s in snapshots} | unsaved.snapshots
        units = list(live.units({s.position: s for s in (*live.snapshots, *snapshots)}.values()))
        try:
            stored = self.stored_keys(u.info.key for u in units)
        except BankError:
            stored = set()
        live.pending.extend(u for u in units if u.info.key not in stored and (u.snapshot is None or u.snapshot.position in wanted))
        self.writer.touch({u.info.key: self._rank_s(live, u) for u in units if u.info.key in stored}, live.used_s)
        stored |= {u.info.key for u in live.pending}
        live.session_row = live.session_of(u.info.key for u in units if u.info.key in stored)
        if not live.pending:
            self.note(live)

    def stored_keys(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys whose records are on disk or queued. Raises BankError."""
        queued = {record.info.key for record in self.writer.waiting()}  # before the index: what is written in between is found there
        wanted = list(keys)
        return queued.intersection(wanted) | self.disk.index.present(wanted)

    def write_again(self) -> None:
        """Make pending again what live conversations need and the disk has no more: it was removed with another conversation."""
        for live in self._live:
            keys = live.session_row.keys if live.session_row else ()
            gone = set(keys) - self.stored_keys(keys)
            wanted = [s for s in live.snapshots if live.snapshot_unit(s).info.key in gone]
            if not gone.issubset(unit.info.key for unit in live.pending):
                live.pending.clear()
                self.begin(live, wanted, NOTHING_UNSAVED)

    def forget_root(self, root: str) -> None:
        """Have the identity of the chains under `root` noted again with the next turn: it was removed from the index."""
        self._noted_roots.discard(root)

    def capture_all(self, live: LiveConversation) -> None:
        """Capture all that is pending."""
        while live.pending:
            self.capture(live)

    def hand_over(self, live: LiveConversation, position: int) -> UnsavedState:
        """Capture what is pending, for HAND_OVER_S at most and without waiting for the disk: a request that continues at `position` waits.

        Returns what of the state up to there is still unsaved, to be pending again after that turn. What lies beyond is dropped, and noted.
        """
        until_s = time.monotonic() + HAND_OVER_S
        while live.pending and not self.writer.is_full and time.monotonic() < until_s:
            self.capture(live)
        self.writer.note_cut([unit.info for unit in live.pending if unit.info.stop > position])
        snapshots = frozenset(u.snapshot.position for u in live.pending if u.snapshot)
        return UnsavedState(snapshots, tuple(m for m in live.memos if m.stop <= position)) if live.pending else NOTHING_UNSAVED

    def capture(self, live: LiveConversation) -> None:
        """Copy one unit, which stays pending until the writer has its bytes. Waits while the writer's queue is full. A unit that cannot be
        copied is skipped, and pending again after the conversation's next turn.
        """
        self.write(live, live.pending[0])
        if len(live.pending) == 1:
            self.note(live)
        live.pending.popleft()  # last: until then `pending_writes` counts it

    def write(self, live: LiveConversation, unit: CaptureUnit) -> None:
        """Copy the unit out of the cache and queue its record; a unit that cannot be copied is skipped."""
        try:
            record = live.capture(unit)
        except NO_COPY as error:
            self.writer.skip("it could not be copied", error, unit.info)
        else:
            self.writer.put(record, RecordLabel(live.session, live.tenant, live.used_s, self._rank_s(live, unit)))

    def note(self, live: LiveConversation) -> None:
        """Have the conversation's row and memos written to the index."""
        if live.session_row:
            self.writer.note(live.session_row)
            for memo in live.memos:
                self.writer.note_memo(memo, live.anchor(memo))

    def _rank_s(self, live: LiveConversation, unit: CaptureUnit) -> float:
        """Eviction rank. The snapshots that the last prompt ends with and the last one rank as the segments, which are not usable without
        them: no turn evicts its own records.
        """
        if unit.snapshot is None or unit.snapshot.position in (live.message_end, live.snapshots[-1].position):
            return live.rank_s
        position = unit.snapshot.position
        saved = position - max((s.position for s in live.snapshots if s.position < position), default=0)
        return policy.rank_s(live.used_s, live.turns, policy.snapshot_value_frac(saved, self._snapshot_cost_tokens))
