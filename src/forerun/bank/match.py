"""Which stored records bring a prompt furthest: chains of segments that end in a mark, deepest first. Reads indexes, never payloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.bank.tier import Tier
from forerun.state.record import SEGMENT_TOKENS, Chain, Record, RecordInfo


@dataclass(frozen=True, slots=True)
class Place:
    """A record and the tier that has it."""

    tier: Tier
    key: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Records that make the state after `position` tokens: segments without a gap from 0, and the mark there."""

    position: int
    segments: tuple[Place, ...]
    mark: Place

    def load(self) -> list[Record]:
        """The segments in order, then the mark, verified. Raises KeyError, DamagedRecordError."""
        places = [*self.segments, self.mark]
        found: dict[str, Record] = {}
        for tier in {id(p.tier): p.tier for p in places}.values():
            keys = [p.key for p in places if p.tier is tier]
            found |= zip(keys, tier.get_many(keys), strict=True)
        return [found[p.key] for p in places]


@dataclass(frozen=True, slots=True)
class Match:
    """What is stored of a prompt: `shared` leading tokens have their rows somewhere; `plans` gives the marks within them, deepest first."""

    tiers: Sequence[Tier]
    chain: Chain
    tokens: Sequence[int]
    nodes: list[str]
    blocks: tuple[Place, ...]

    @property
    def shared(self) -> int:
        """Leading tokens of the prompt that stored conversations have too."""
        start = len(self.blocks) * SEGMENT_TOKENS
        rest = self.tokens[start : start + SEGMENT_TOKENS]
        return start + max((tier.index.shared(self.nodes[len(self.blocks)], rest) for tier in self.tiers), default=0)

    def plans(self) -> Iterator[Plan]:
        """Reachable marks, deepest first; of equals the one in the earlier tier."""
        for depth in range(len(self.blocks), -1, -1):
            rest = self.tokens[depth * SEGMENT_TOKENS : (depth + 1) * SEGMENT_TOKENS]
            marks = [(info, tier) for tier in self.tiers for info in tier.index.along("mark", self.nodes[depth], rest)]
            for info, tier in sorted(marks, key=lambda found: -len(found[0].tokens)):
                tail = self._tail(info)
                if tail is not None:
                    yield Plan(info.stop, self.blocks[:depth] + tail, Place(tier, info.key))

    def _tail(self, mark: RecordInfo) -> tuple[Place, ...] | None:
        """The segment that has the rows between the mark's node and the mark; none is needed at the node itself."""
        if not mark.tokens:
            return ()
        found = ((tier, tier.index.segment_over(mark.parent, mark.tokens)) for tier in self.tiers)
        return next(((Place(tier, info.key),) for tier, info in found if info is not None), None)


def match(tiers: Sequence[Tier], chain: Chain, tokens: Sequence[int]) -> Match:
    """Look the prompt up: one hash and one row a block. Of a record that several tiers have, the earlier tier's counts."""
    nodes = chain.nodes(tokens)
    keys = [chain.key("segment", node, tokens[i * SEGMENT_TOKENS : (i + 1) * SEGMENT_TOKENS]) for i, node in enumerate(nodes[:-1])]
    where = {key: tier for tier in reversed(tiers) for key in tier.index.find(keys)}
    num_blocks = next((i for i, key in enumerate(keys) if key not in where), len(keys))
    return Match(tiers, chain, tokens, nodes, tuple(Place(where[key], key) for key in keys[:num_blocks]))
