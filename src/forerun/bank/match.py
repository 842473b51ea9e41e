"""Which stored records bring a prompt furthest: chains of segments that end in a mark, deepest first. And how a stored conversation goes on
where a prompt leaves it, in the token ids that the model sampled (so these are known again after a restart: see engine/echo.py).

Reads indexes, never payloads. May be called from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.bank.tier.base import Tier
from forerun.state.record import SEGMENT_TOKENS, Chain, Record, RecordInfo

_MOST_BLOCKS = 8  # that an answer may span


@dataclass(frozen=True, slots=True)
class Trail:
    """A prompt's tokens and the nodes that they pass: what every look-up needs, hashed once."""

    tokens: tuple[int, ...]
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, chain: Chain, tokens: Sequence[int]) -> Trail:
        """The trail of these tokens along `chain`."""
        return cls(tuple(tokens), tuple(chain.nodes(tokens)))

    def passes(self, record: Record) -> bool:
        """Whether the record is a mark at which these tokens pass."""
        if record.kind != "mark" or record.stop > len(self.tokens):
            return False
        own = self.tokens[record.start : record.stop]
        return self.nodes[record.start // SEGMENT_TOKENS] == record.parent and own == record.tokens

    def start(self, depth: int) -> int:
        """Tokens before the node of this depth."""
        return depth * SEGMENT_TOKENS

    def rest(self, depth: int) -> tuple[int, ...]:
        """The tokens after the node of this depth, at most a block of them."""
        return self.tokens[depth * SEGMENT_TOKENS : (depth + 1) * SEGMENT_TOKENS]


@dataclass(frozen=True, slots=True)
class Place:
    """A record and the tier that has it."""

    tier: Tier
    key: str

    @property
    def is_on_disk(self) -> bool:
        """Whether a file is read for it."""
        return self.tier.source == "ssd"


@dataclass(frozen=True, slots=True)
class Plan:
    """Records that make the state after `position` tokens: segments without a gap from 0, and the mark there."""

    position: int
    segments: tuple[Place, ...]
    mark: Place

    @property
    def places(self) -> tuple[Place, ...]:
        """The segments in order, then the mark."""
        return (*self.segments, self.mark)

    def load(self) -> list[Record]:
        """The records of these places, verified. Raises KeyError, DamagedRecordError."""
        found: dict[str, Record] = {}
        for tier in {id(p.tier): p.tier for p in self.places}.values():
            keys = [p.key for p in self.places if p.tier is tier]
            found |= zip(keys, tier.get_many(keys), strict=True)
        return [found[p.key] for p in self.places]

    def set_aside(self, key: str) -> None:
        """Have the record of that key, if it is one of these, not served again."""
        for place in self.places:
            if place.key == key:
                place.tier.set_aside(key)


@dataclass(frozen=True, slots=True)
class Match:
    """What is stored of a prompt: `shared` leading tokens have their rows somewhere; `plans` gives the marks within them, deepest first."""

    tiers: Sequence[Tier]
    trail: Trail
    blocks: tuple[Place, ...]

    def nearest(self) -> tuple[int, tuple[int, ...]]:
        """How many leading tokens of the prompt a stored conversation has too, at most, and how its block goes on after these."""
        depth = len(self.blocks)
        found = (tier.index.nearest(self.trail.nodes[depth], self.trail.rest(depth)) for tier in self.tiers)
        shared, following = max(found, default=(0, ()), key=lambda x: (x[0], len(x[1])))
        return self.trail.start(depth) + shared, following

    def plans(self) -> Iterator[Plan]:
        """Reachable marks, deepest first; of equals the one in the earlier tier."""
        for depth in range(len(self.blocks), -1, -1):
            node, rest = self.trail.nodes[depth], self.trail.rest(depth)
            marks = [(info, tier) for tier in self.tiers for info in tier.index.along("mark", node, rest)]
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


def match(tiers: Sequence[Tier], chain: Chain, trail: Trail) -> Match:
    """Look the prompt up: one hash and one row a block. Of a record that several tiers have, the earlier tier's counts."""
    keys = [chain.key("segment", node, trail.rest(depth)) for depth, node in enumerate(trail.nodes[:-1])]
    where = {key: tier for tier in reversed(tiers) for key in tier.index.present(keys)}
    num_blocks = next((i for i, key in enumerate(keys) if key not in where), len(keys))
    return Match(tiers, trail, tuple(Place(where[key], key) for key in keys[:num_blocks]))


def recall(tier: Tier, chain: Chain, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the prompt shares with the stored conversation which begins like it for longest, and the stored ones after these:
    up to the end of the conversation, or of _MOST_BLOCKS blocks. Nothing where the prompt does not leave it. Raises BankError.
    """
    trail = Trail.of(chain, tokens)
    shared, following = match([tier], chain, trail).nearest()
    if shared == len(tokens) or not following:
        return tokens[:shared], ()
    block = (*tokens[shared - shared % SEGMENT_TOKENS : shared], *following)
    node, stored = trail.nodes[shared // SEGMENT_TOKENS], list(following)
    for _ in range(_MOST_BLOCKS):
        if len(block) < SEGMENT_TOKENS:
            break
        node = chain.child(node, block)
        block = tier.index.latest_segment(node)
        stored.extend(block)
    return tokens[:shared], tuple(stored)
