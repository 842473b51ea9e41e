"""A conversation that stays in RAM as a live cache: its tokens, its marks, and what of it is still to be captured for the disk.

Runs on the thread that owns MLX. Knows nothing of tiers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from forerun.bank import retain
from forerun.bank.history import Anchor, Memo, Session
from forerun.state.cache import Cache, Snapshot
from forerun.state.record import SEGMENT_TOKENS, Chain, Record, RecordInfo, num_shared
from forerun.state.records import extract, extract_mark


@dataclass(frozen=True, slots=True)
class Unit:
    """One record that can be taken from a live cache: at most SEGMENT_TOKENS rows, or one mark. The bound on what a capture delays."""

    key: str
    parent: str
    start: int
    tokens: tuple[int, ...]
    mark: Snapshot | None


@dataclass(slots=True)
class Live:
    """tokens: what `cache` holds, as many as its length. marks: by position, earliest first. pending: units that are to go to disk.
    used_s: when it was last used, Unix seconds. turns: how many it has had. told: what the index is to be told of it when
    all is written. memo: of its last turn, to be kept then too. nodes: of its tokens.
    """

    cache: Cache[Any]
    tokens: list[int]
    marks: list[Snapshot]
    chain: Chain
    session: str
    tenant: str
    turns: int
    memo: Memo | None
    pending: deque[Unit] = field(default_factory=deque)
    used_s: float = field(default_factory=time.time)
    told: Session | None = None
    nodes: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.chain.nodes(self.tokens)

    def units(self, marks: Collection[Snapshot]) -> Iterator[Unit]:
        """Units for all tokens, and then for these of the marks."""
        for i, node in enumerate(self.nodes):
            tokens = self.block(i)
            if tokens:
                yield Unit(self.chain.key("segment", node, tokens), node, i * SEGMENT_TOKENS, tokens, None)
        for mark in marks:
            block = mark.position // SEGMENT_TOKENS
            tokens = tuple(self.tokens[block * SEGMENT_TOKENS : mark.position])
            yield Unit(self.chain.key("mark", self.nodes[block], tokens), self.nodes[block], block * SEGMENT_TOKENS, tokens, mark)

    def info(self, unit: Unit) -> RecordInfo:
        """The unit's record, but for its payload."""
        return RecordInfo("segment" if unit.mark is None else "mark", unit.key, self.chain.root, unit.parent, unit.start, unit.tokens, 0)

    def capture(self, unit: Unit) -> Record:
        """The unit's record, its bytes copied out of the cache."""
        stop = unit.start + len(unit.tokens)
        payload = extract(self.cache, unit.start, stop) if unit.mark is None else extract_mark(unit.mark)
        return Record("segment" if unit.mark is None else "mark", unit.key, self.chain.root, unit.parent, unit.start, unit.tokens, payload)

    def block(self, depth: int) -> tuple[int, ...]:
        """The tokens after the node of this depth, at most a block of them."""
        return tuple(self.tokens[depth * SEGMENT_TOKENS : (depth + 1) * SEGMENT_TOKENS])

    def mark_in(self, depth: int, rest: tuple[int, ...]) -> Snapshot | None:
        """The last mark in the block of this depth that lies within `rest`, a prompt's tokens in that block."""
        start = depth * SEGMENT_TOKENS
        shared = start + num_shared(self.block(depth), rest)
        return next((m for m in reversed(self.marks) if start <= m.position <= shared and m.position // SEGMENT_TOKENS == depth), None)

    def anchor(self, memo: Memo) -> Anchor:
        """What a memo of this conversation hangs from: of its tokens, as far as they are here, those in the last block."""
        stop = min(memo.stop, len(self.tokens))
        depth = (stop - 1) // SEGMENT_TOKENS
        return Anchor(self.chain.root, self.nodes[depth], self.block(depth)[: stop - depth * SEGMENT_TOKENS])

    @property
    def num_bytes(self) -> int:
        """Bytes held: the cache's and the marks'."""
        return self.cache.num_bytes + sum(m.num_bytes for m in self.marks)

    @property
    def rank_s(self) -> float:
        """Its rank among what goes first."""
        return retain.rank_s(self.used_s, self.turns, 1.0)
