"""The bank: conversations' states in RAM and on disk. What it consists of, put together; and what happens when a turn is over.

A conversation is in RAM once: as a live cache, or as records. Tiers return records, never caches. Runs on the thread that owns MLX, but for
`figures`. Knows nothing of models' forward passes or of requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.bank import retain
from forerun.bank.figures import Figures
from forerun.bank.live import NOTHING_LEFT, Left, Live, Lives
from forerun.bank.match import Trail, recall
from forerun.bank.ram import Ram
from forerun.bank.restore import Restored, Restoring, Stock, cold
from forerun.bank.saving import Saving
from forerun.bank.sessions import Sessions
from forerun.bank.tier.base import Tier
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.history import Memo
from forerun.bank.tier.memory import MemoryTier
from forerun.bank.why import Inquiry, Why
from forerun.errors import BankError
from forerun.state.cache import Cache, Snapshot
from forerun.state.layout import L
from forerun.state.record import SEGMENT_TOKENS, Chain, Identity, RecordInfo
from forerun.state.spec import StateSpec
from forerun.state.store import Arena

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Turned:
    """A turn that is over: whose, the how manieth, where its prompt's messages end, and how many of its marks (the last ones) are new.

    memo: what is to be known of its answer after a restart, None for nothing. left: as `Restored` had it.
    """

    session: str
    tenant: str
    turns: int
    message_end: int
    new_marks: int
    memo: Memo | None = None
    left: Left = NOTHING_LEFT


class Bank:
    """Conversations of one model: as objects in `sessions`, counted in `figures`. `disk` None: nothing survives the process."""

    def __init__(self, spec: StateSpec, identity: Identity, *, disk: DiskTier | None, secret: bytes, ram_limit_bytes: int) -> None:
        self._identity, self._secret = identity, secret
        self._ram_limit_bytes = ram_limit_bytes
        self._memory, self._disk = MemoryTier(), disk
        tiers: tuple[Tier, ...] = (self._memory,) if disk is None else (self._memory, disk)
        self._lives = Lives()
        self._saving = Saving(disk, spec, self._lives) if disk is not None else None
        self._ram = Ram(self._lives, self._memory, self._saving)
        self._stock = Stock(Arena(spec), self._ram, tiers, self._saving, Inquiry(tiers, self._lives, secret, identity))
        self.figures = Figures(self._ram, self._saving)
        self.sessions = Sessions(self._ram, self._saving, self._chain)

    def restore(self, tokens: Sequence[int], *, tenant: str, session: str | None, layout: L, room_tokens: int) -> Restored[L]:
        """The state of as many of `tokens` as can be had, in `layout`, with room for `room_tokens` more than the prompt. Always a cache."""
        chain = self._chain(tenant)
        return Restoring(self._stock, Trail.of(chain, tokens), chain, session, layout, room_tokens).run()

    def recall(self, tokens: tuple[int, ...], *, tenant: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What of `tokens` the nearest conversation on disk begins with, and how that one goes on. May be called from any thread.

        An index that fails recalls nothing: `restore`, which asks it next, is the one to say so.
        """
        try:
            return recall(self._disk, self._chain(tenant), tokens) if self._disk else ((), ())
        except BankError:
            return (), ()

    def memos(self, names: Collection[str], *, tenant: str) -> list[bytes]:
        """What is kept on disk under these names, of the tenant's conversations. As `recall` otherwise."""
        try:
            return self._disk.index.memos(self._chain(tenant).root, names) if self._disk and names else []
        except BankError:
            return []

    def bypass(self, reason: str, *, session: str | None, layout: L, room_tokens: int) -> Restored[L]:
        """An empty cache for a request that does not use the bank, for this reason."""
        return cold(self._stock.arena, session, layout, room_tokens, Why("bypass", reason, 0, ()))

    def remember(self, cache: Cache[Any], tokens: Sequence[int], marks: Sequence[Snapshot], turn: Turned) -> None:
        """Keep the conversation: `tokens` are what `cache` holds, `marks` are of them. Consumes the cache."""
        if cache.is_broken or cache.length != len(tokens):
            raise ValueError(f"a cache of {cache.length} tokens{' that is broken' * cache.is_broken} is not the state after {len(tokens)}")
        by_position = {m.position: m for m in marks}
        staying = retain.in_ram(sorted(by_position))
        live_marks = [by_position[p] for p in sorted(staying)]
        memos = (*turn.left.memos, *filter(None, [turn.memo]))
        live = Live(cache, list(tokens), live_marks, self._chain(turn.tenant), turn.session, turn.turns, memos)
        if self._saving is not None:
            fresh = sorted({m.position for m in marks[len(marks) - turn.new_marks :]})
            wanted = [by_position[p] for p in sorted(retain.for_disk(fresh, turn.message_end))]
            self._saving.begin(live, wanted, turn.left)
        self._lives.add(live)
        self.trim()

    def note_unstored(self, tokens: tuple[int, ...], tenant: str, why: str) -> None:
        """Note why the state after these tokens is not kept, to be told when it is missed."""
        chain = self._chain(tenant)
        node, start = chain.nodes(tokens)[-1], len(tokens) - len(tokens) % SEGMENT_TOKENS
        info = RecordInfo("mark", chain.key("mark", node, tokens[start:]), chain.root, node, start, tokens[start:], 0)
        try:
            self._memory.index.note_lost([info], "not stored", why, time.time())
        except BankError as error:  # the request has failed already, and the next one will only not be told why
            log.warning("not noted: %s", error)

    def capture_one(self) -> bool:
        """Copy one unit of what is pending for the disk. Returns whether there was one. Bounded: call it when nothing more urgent waits."""
        live = next((x for x in self._lives if x.pending), None)
        if live is None or self._saving is None or self._saving.writer.is_full:
            return False
        self._saving.capture(live)
        return True

    def trim(self) -> int:
        """Let go of what is least likely to be asked for again, until RAM is within its limit. Returns of how many conversations and
        records. What goes was captured for the disk before, if there is one.
        """
        return self._shrink(self._ram_limit_bytes)

    def own(self, tokens: Sequence[int], *, tenant: str, session: str | None) -> Live | None:
        """The live conversation in whose cache `restore` would go on with these tokens, if no record has more of them."""
        reach = self._lives.best(Trail.of(self._chain(tenant), tokens), session, ())
        return reach.live if reach and reach.may_be_taken(session) else None

    def give_back(self, num_bytes: int, spared: Live | None) -> int:
        """As `trim`, until so many bytes are free, or nothing else is left. Returns of how many conversations and records."""
        return self._shrink(self._ram.held_bytes - num_bytes, spared)

    def _shrink(self, limit_bytes: int, spared: Live | None = None) -> int:
        num_evicted = self._ram.shrink(limit_bytes, spared)
        if num_evicted:
            self._stock.arena.shrink()
        return num_evicted

    def flush(self, limit_s: float) -> bool:
        """Write all that is pending, waiting at most `limit_s` seconds for the disk. Returns whether all is safe."""
        if self._saving is None:
            return True
        for live in self._lives:
            self._saving.capture_all(live)
        return self._saving.writer.flush(limit_s)

    def close(self) -> None:
        """Stop writing and let go of the tiers. What is still pending is lost: `flush` first."""
        if self._saving is not None:
            self._saving.writer.close()
        self._lives.clear()
        for tier in self._stock.tiers:
            tier.close()

    @property
    def paged_blocks(self) -> tuple[int, int]:
        """Pages that caches hold, and free ones. May be called from any thread."""
        return self._stock.arena.num_blocks

    @property
    def off_reason(self) -> str:
        """Why nothing can be reused, whatever is asked; "" if something can."""
        return "" if self._disk or self._ram_limit_bytes else "nothing is kept of conversations: bank_ram_bytes and bank_disk_bytes are 0"

    def _chain(self, tenant: str) -> Chain:
        return Chain(self._secret, tenant, self._identity)
