"""What of the live conversations goes to disk, and its copying out of their caches, a unit at a time. Runs on the thread that owns MLX.

Knows nothing of prompts or of how records come back.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from forerun.bank import retain
from forerun.bank.eviction import EvictingDisk
from forerun.bank.live import NOTHING_UNSAVED, CaptureUnit, LiveConversation, LiveConversations, UnsavedState
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.index import RecordLabel
from forerun.bank.writer import Writer
from forerun.errors import BankError
from forerun.state.cache import Snapshot
from forerun.state.spec import StateSpec

HAND_OVER_S = 0.5  # that a request waits at most for the saving of the conversation that it goes on with
NO_COPY = (MemoryError, RuntimeError, ValueError)  # what copying rows out of a cache may raise


class DiskSaver:
    """Has live conversations written to a disk tier. room: what writes there besides, while nothing waits for `writer`."""

    def __init__(self, disk: DiskTier, spec: StateSpec, live: LiveConversations) -> None:
        self.disk, self.room = disk, EvictingDisk(disk, lambda: [live.unannounced for live in live if live.unannounced])
        self.writer = Writer(self.room)
        self._snapshot_cost_tokens = spec.snapshot_tokens
        self._noted_roots: set[str] = set()

    def begin(self, live: LiveConversation, snapshots: Collection[Snapshot], left: UnsavedState) -> None:
        """Let what is neither on disk nor on its way there be pending, of the conversation, of `marks` and of what its last turn left; and
        have it noted that the rest was used: a conversation ages as one, its beginning not before its end. If the index cannot say what is
        there, all is written: that costs nothing but time.
        """
        if live.hasher.root not in self._noted_roots:
            self._noted_roots.add(live.hasher.root)
            self.writer.note_identity(live.hasher.root, live.tenant, live.hasher.identity.fields)
        wanted = {m.position for m in snapshots} | left.snapshots
        units = list(live.units({m.position: m for m in (*live.snapshots, *snapshots)}.values()))
        known = {record.key for record in self.writer.waiting()}  # before the look: what is written meanwhile is found there
        try:
            known |= self.disk.index.present([u.key for u in units])
        except BankError:
            known.clear()
        live.pending.extend(u for u in units if u.key not in known and (u.snapshot is None or u.snapshot.position in wanted))
        self.writer.touch({u.key: self._rank_s(live, u) for u in units if u.key in known}, live.used_s)
        kept = known | {u.key for u in live.pending}
        live.unannounced = live.session_of(u.key for u in units if u.key in kept)
        if not live.pending:
            self._note(live)

    def forget_root(self, root: str) -> None:
        """Have the identity of the chains that begin at `root` noted again with the next turn: the index knows it no more."""
        self._noted_roots.discard(root)

    def capture_all(self, live: LiveConversation) -> None:
        """Copy all that is pending."""
        while live.pending:
            self.capture(live)

    def hand_over(self, live: LiveConversation, position: int) -> UnsavedState:
        """Copy what is pending, for a while and without waiting for the disk: a request waits, which takes the conversation up at this
        position. Returns what is left up to there, to be pending again after its turn; what lies beyond is lost, and that is noted.
        """
        until_s = time.monotonic() + HAND_OVER_S
        while live.pending and not self.writer.is_full and time.monotonic() < until_s:
            self.capture(live)
        self.writer.note_cut([live.info(unit) for unit in live.pending if unit.stop > position])
        snapshots = frozenset(u.snapshot.position for u in live.pending if u.snapshot)
        return UnsavedState(snapshots, tuple(m for m in live.memos if m.stop <= position)) if live.pending else NOTHING_UNSAVED

    def capture(self, live: LiveConversation) -> None:
        """Copy one unit, which stays pending until the writer has its bytes. Waits while the writer is full. What cannot be copied is
        skipped: it is pending again after the conversation's next turn.
        """
        unit = live.pending[0]
        try:
            record = live.capture(unit)
        except NO_COPY as error:
            self.writer.skip("it could not be copied", error, live.info(unit))
        else:
            self.writer.put(record, RecordLabel(live.session, live.tenant, live.used_s, self._rank_s(live, unit)))
        if len(live.pending) == 1:
            self._note(live)
        live.pending.popleft()  # last: until then it is known that there is something to write

    def _note(self, live: LiveConversation) -> None:
        """Have it noted what the conversation consists of, and its memo kept."""
        if live.unannounced:
            self.writer.note(live.unannounced)
            for memo in live.memos:
                self.writer.note_memo(memo, live.anchor(memo))

    def _rank_s(self, live: LiveConversation, unit: CaptureUnit) -> float:
        """The last mark ranks as the segments, of which none is of use without it."""
        if unit.snapshot is None or unit.snapshot.position == live.snapshots[-1].position:
            return live.rank_s
        position = unit.snapshot.position
        saved = position - max((m.position for m in live.snapshots if m.position < position), default=0)
        return retain.rank_s(live.used_s, live.turns, retain.snapshot_value_frac(saved, self._snapshot_cost_tokens))
