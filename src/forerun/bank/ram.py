"""Conversations in RAM, evicted by one order (`policy.rank_s`): the least likely to be needed first.

Runs on the thread that owns MLX. Knows nothing of prompts or of the RAM limit.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from forerun.bank.live import LiveConversation, LiveConversations
from forerun.bank.protection import Protections
from forerun.bank.saver import DiskSaver
from forerun.bank.tier.index import Index


class Ram:
    """What one bank holds in RAM. losses: where evictions are noted without a disk. saver: None without a disk. protections: what requests
    that wait would restore.
    """

    def __init__(self, live: LiveConversations, losses: Index, saver: DiskSaver | None, protections: Protections) -> None:
        self.live, self._losses, self._saver, self._protections = live, losses, saver, protections

    @property
    def held_bytes(self) -> int:
        """Bytes of live conversations; a snapshot that forks share counts once."""
        snapshots = {id(s): s.num_bytes for live in self.live for s in live.snapshots}
        return sum(live.cache.num_bytes for live in self.live) + sum(snapshots.values())

    def shrink(self, limit_bytes: int, spared: Collection[LiveConversation]) -> int:
        """Evict conversations, except `spared` and protected ones, until at most `limit_bytes` are held. Returns how many were evicted."""
        num_evicted, kept = 0, {*spared, *(self._protected() if self.held_bytes > limit_bytes else ())}
        while self.held_bytes > limit_bytes and self._evict_one(kept):
            num_evicted += 1
        return num_evicted

    def release(self, live: LiveConversation) -> None:
        """Remove a conversation from the live ones; what is pending is captured first."""
        if self._saver is not None:
            self._saver.capture_all(live)
        self.live.remove(live)

    def _protected(self) -> Iterator[LiveConversation]:
        """The conversations that protected prompts would take over or fork."""
        for prompt in self._protections.prompts():
            if reach := self.live.best(prompt.chain, prompt.session, ()):
                yield reach.live

    def _evict_one(self, spared: Collection[LiveConversation]) -> bool:
        live = min((x for x in self.live if x not in spared), key=lambda x: x.rank_s, default=None)
        if live is None:
            return False
        self.release(live)
        if self._saver is None:
            infos = [unit.info for unit in live.units(live.snapshots)]
            self._losses.note_lost(infos, "evicted", "RAM was short, and nothing is stored on disk", time.time())
        return True
