"""Conversations in RAM, as live caches or as records, and what goes when room is short: what is least likely to be asked for again, both by
one order (`retain.rank_s`).

Runs on the thread that owns MLX. Knows nothing of prompts or of how much room there is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from forerun.bank.live import LiveConversation, LiveConversations
from forerun.bank.saver import DiskSaver
from forerun.bank.tier.index import RecordLabel
from forerun.bank.tier.memory import MemoryTier
from forerun.state.record import RecordInfo


class Ram:
    """Of one bank. saving is None if nothing survives the process."""

    def __init__(self, live: LiveConversations, memory: MemoryTier, saver: DiskSaver | None) -> None:
        self.live, self.memory, self._saver = live, memory, saver

    @property
    def held_bytes(self) -> int:
        """Bytes of live conversations and of records."""
        return sum(x.num_bytes for x in self.live) + self.memory.num_bytes

    def shrink(self, limit_bytes: int, spared: LiveConversation | None) -> int:
        """Let go of conversations and records, but for this one, until no more than so much is held. Returns of how many."""
        num_evicted = 0
        while self.held_bytes > limit_bytes and self._evict_one(spared):
            num_evicted += 1
        return num_evicted

    def let_go(self, live: LiveConversation) -> None:
        """Take a conversation out of the live ones; what is pending is captured first."""
        if self._saver is not None:
            self._saver.capture_all(live)
        self.live.remove(live)

    def settle(self, live: LiveConversation) -> None:
        """Turn a live conversation into records, so that several can go on from it. Raises NO_COPY: it stays as it is."""
        records = [live.capture(unit) for unit in live.units(live.snapshots)]
        self.let_go(live)
        self.memory.index.note_session(live.session_of(record.key for record in records))
        for record in records:
            self.memory.put(record)
            self.memory.index.label(record.key, RecordLabel(live.session, live.tenant, live.used_s, live.rank_s))

    def _evict_one(self, spared: LiveConversation | None) -> bool:
        live = min((x for x in self.live if x is not spared), key=lambda x: x.rank_s, default=None)
        record = next(iter(self.memory.index.lowest(1, ())), None)
        if record and (live is None or record.rank_s <= live.rank_s):
            self.memory.delete(record.info.key)
            self._note_gone([record.info])
            self.memory.index.forget_empty_sessions([(record.tenant, record.session)])
        elif live:
            self.let_go(live)
            self._note_gone([live.info(unit) for unit in live.units(live.snapshots)])
        return bool(record or live)

    def _note_gone(self, infos: Sequence[RecordInfo]) -> None:
        """Note what left RAM, if that was the only place."""
        if self._saver is None:
            self.memory.index.note_lost(infos, "evicted", "RAM was short, and nothing is kept on disk", time.time())
