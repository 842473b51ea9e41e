"""A conversation that stays in RAM as a live cache: its tokens, its marks, and what of it is still to be captured for the disk.

Runs on the thread that owns MLX. Knows nothing of tiers or policy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.state.cache import Cache, Snapshot
from forerun.state.record import SEGMENT_TOKENS, Chain, Record
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
    used_s: when it was last used, Unix seconds.
    """

    cache: Cache[Any]
    tokens: list[int]
    marks: list[Snapshot]
    chain: Chain
    session: str
    tenant: str
    pending: deque[Unit] = field(default_factory=deque)
    used_s: float = field(default_factory=time.time)

    def units(self, marks: Collection[Snapshot]) -> Iterator[Unit]:
        """Units for all tokens, and then for these of the marks."""
        nodes = self.chain.nodes(self.tokens)
        for i, node in enumerate(nodes):
            tokens = tuple(self.tokens[i * SEGMENT_TOKENS : (i + 1) * SEGMENT_TOKENS])
            if tokens:
                yield Unit(self.chain.key("segment", node, tokens), node, i * SEGMENT_TOKENS, tokens, None)
        for mark in marks:
            block = mark.position // SEGMENT_TOKENS
            tokens = tuple(self.tokens[block * SEGMENT_TOKENS : mark.position])
            yield Unit(self.chain.key("mark", nodes[block], tokens), nodes[block], block * SEGMENT_TOKENS, tokens, mark)

    def capture(self, unit: Unit) -> Record:
        """The unit's record, its bytes copied out of the cache."""
        stop = unit.start + len(unit.tokens)
        payload = extract(self.cache, unit.start, stop) if unit.mark is None else extract_mark(unit.mark)
        return Record("segment" if unit.mark is None else "mark", unit.key, self.chain.root, unit.parent, unit.start, unit.tokens, payload)

    def shared(self, tokens: Sequence[int]) -> int:
        """How many leading tokens a prompt has in common with this conversation."""
        limit = min(len(tokens), len(self.tokens))
        # Halving finds the border with a few comparisons of whole slices: a Python loop over 50,000 tokens would cost milliseconds.
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.tokens[low:middle] == list(tokens[low:middle]):
                low = middle
            else:
                high = middle - 1
        return low

    def mark_within(self, position: int) -> Snapshot | None:
        """The last mark at or before `position`."""
        return next((m for m in reversed(self.marks) if m.position <= position), None)

    @property
    def num_bytes(self) -> int:
        """Bytes held: the cache's and the marks'."""
        return self.cache.num_bytes + sum(m.num_bytes for m in self.marks)
