"""Conversations in RAM, as live caches or as host records, evicted by one order (`policy.rank_s`): the least likely to be needed first.

Runs on the thread that owns MLX. Knows nothing of prompts or of the RAM limit.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from forerun.bank.live import LiveConversation, LiveConversations
from forerun.bank.protection import Protections
from forerun.bank.saver import DiskSaver
from forerun.bank.tier.memory import MemoryTier
from forerun.state.record import RecordInfo


class Ram:
    """What one bank holds in RAM. saver: None without a disk. protections: what requests that wait or run would restore."""

    def __init__(self, live: LiveConversations, memory: MemoryTier, saver: DiskSaver | None, protections: Protections) -> None:
        self.live, self.memory, self._saver, self._protections = live, memory, saver, protections

    @property
    def held_bytes(self) -> int:
        """Bytes of live conversations and of records; a snapshot that forks share counts once."""
        snapshots = {id(s): s.num_bytes for live in self.live for s in live.snapshots}
        return sum(live.cache.num_bytes for live in self.live) + sum(snapshots.values()) + self.memory.num_bytes

    def shrink(self, limit_bytes: int, spared: Collection[LiveConversation]) -> int:
        """Evict conversations and records, except `spared` and protected ones, until at most `limit_bytes` are held. Returns how many were
        evicted.
        """
        num_evicted, kept = 0, {*spared, *(self._protections.in_ram(self.live) if self.held_bytes > limit_bytes else ())}
        while self.held_bytes > limit_bytes and self._evict_one(kept):
            num_evicted += 1
        return num_evicted

    def release(self, live: LiveConversation) -> None:
        """Remove a conversation from the live ones; what is pending is captured first."""
        if self._saver is not None:
            self._saver.capture_all(live)
        self.live.remove(live)

    def _evict_one(self, spared: Collection[LiveConversation]) -> bool:
        live = min((x for x in self.live if x not in spared), key=lambda x: x.rank_s, default=None)
        record = next(iter(self.memory.index.lowest(1, ())), None)
        if record and (live is None or record.rank_s <= live.rank_s):
            self.memory.delete(record.info.key)
            self._note_gone([record.info])
            self.memory.index.forget_empty_sessions([(record.tenant, record.session)])
        elif live:
            self.release(live)
            self._note_gone([unit.info for unit in live.units(live.snapshots)])
        return bool(record or live)

    def _note_gone(self, infos: Sequence[RecordInfo]) -> None:
        """Note what was evicted, unless it is on disk too."""
        if self._saver is None:
            self.memory.index.note_lost(infos, "evicted", "RAM was short, and nothing is stored on disk", time.time())
