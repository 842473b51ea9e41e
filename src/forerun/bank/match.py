"""Which stored records bring a prompt furthest: chains of segments that end in a mark, deepest first. And how a stored conversation goes on
where a prompt leaves it, in the token ids that the model sampled (so these are known again after a restart: see engine/prompt_encoding.py).

Reads indexes, never payloads. May be called from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.bank.tier.base import Tier
from forerun.state.record import SEGMENT_TOKENS, PrefixHasher, Record, RecordInfo

_MOST_BLOCKS = 8  # that an answer may span


@dataclass(frozen=True, slots=True)
class PrefixChain:
    """A prompt's tokens and the nodes that they pass: what every look-up needs, hashed once."""

    tokens: tuple[int, ...]
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, hasher: PrefixHasher, tokens: Sequence[int]) -> PrefixChain:
        """The trail of these tokens along `chain`."""
        return cls(tuple(tokens), tuple(hasher.nodes(tokens)))

    def passes(self, record: Record) -> bool:
        """Whether the record is a mark at which these tokens pass."""
        if record.kind != "snapshot" or record.stop > len(self.tokens):
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
class RecordLocation:
    """A record and the tier that has it."""

    tier: Tier
    key: str

    @property
    def is_on_disk(self) -> bool:
        """Whether a file is read for it."""
        return self.tier.source == "ssd"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Records that make the state after `position` tokens: segments without a gap from 0, and the mark there."""

    position: int
    segments: tuple[RecordLocation, ...]
    snapshot: RecordLocation

    @property
    def locations(self) -> tuple[RecordLocation, ...]:
        """The segments in order, then the mark."""
        return (*self.segments, self.snapshot)

    def load(self) -> list[Record]:
        """The records of these places, verified. Raises KeyError, DamagedRecordError."""
        found: dict[str, Record] = {}
        for tier in {id(p.tier): p.tier for p in self.locations}.values():
            keys = [p.key for p in self.locations if p.tier is tier]
            found |= zip(keys, tier.get_many(keys), strict=True)
        return [found[p.key] for p in self.locations]

    def set_aside(self, key: str) -> None:
        """Have the record of that key, if it is one of these, not served again."""
        for location in self.locations:
            if location.key == key:
                location.tier.set_aside(key)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What is stored of a prompt: `shared` leading tokens have their rows somewhere; `plans` gives the marks within them, deepest first."""

    tiers: Sequence[Tier]
    chain: PrefixChain
    blocks: tuple[RecordLocation, ...]

    def nearest(self) -> tuple[int, tuple[int, ...]]:
        """How many leading tokens of the prompt a stored conversation has too, at most, and how its block goes on after these."""
        depth = len(self.blocks)
        found = (tier.index.nearest(self.chain.nodes[depth], self.chain.rest(depth)) for tier in self.tiers)
        shared, following = max(found, default=(0, ()), key=lambda x: (x[0], len(x[1])))
        return self.chain.start(depth) + shared, following

    def plans(self) -> Iterator[RestorePlan]:
        """Reachable marks, deepest first; of equals the one in the earlier tier."""
        for depth in range(len(self.blocks), -1, -1):
            node, rest = self.chain.nodes[depth], self.chain.rest(depth)
            snapshots = [(info, tier) for tier in self.tiers for info in tier.index.along("snapshot", node, rest)]
            for info, tier in sorted(snapshots, key=lambda found: -len(found[0].tokens)):
                tail = self._tail(info)
                if tail is not None:
                    yield RestorePlan(info.stop, self.blocks[:depth] + tail, RecordLocation(tier, info.key))

    def _tail(self, snapshot: RecordInfo) -> tuple[RecordLocation, ...] | None:
        """The segment that has the rows between the mark's node and the mark; none is needed at the node itself."""
        if not snapshot.tokens:
            return ()
        found = ((tier, tier.index.segment_over(snapshot.parent, snapshot.tokens)) for tier in self.tiers)
        return next(((RecordLocation(tier, info.key),) for tier, info in found if info is not None), None)


def match(tiers: Sequence[Tier], hasher: PrefixHasher, chain: PrefixChain) -> PrefixMatch:
    """Look the prompt up: one hash and one row a block. Of a record that several tiers have, the earlier tier's counts."""
    keys = [hasher.key("segment", node, chain.rest(depth)) for depth, node in enumerate(chain.nodes[:-1])]
    where = {key: tier for tier in reversed(tiers) for key in tier.index.present(keys)}
    num_blocks = next((i for i, key in enumerate(keys) if key not in where), len(keys))
    return PrefixMatch(tiers, chain, tuple(RecordLocation(where[key], key) for key in keys[:num_blocks]))


def recall(tier: Tier, hasher: PrefixHasher, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the prompt shares with the stored conversation which begins like it for longest, and the stored ones after these:
    up to the end of the conversation, or of _MOST_BLOCKS blocks. Nothing where the prompt does not leave it. Raises BankError.
    """
    chain = PrefixChain.of(hasher, tokens)
    shared, following = match([tier], hasher, chain).nearest()
    if shared == len(tokens) or not following:
        return tokens[:shared], ()
    block = (*tokens[shared - shared % SEGMENT_TOKENS : shared], *following)
    node, stored = chain.nodes[shared // SEGMENT_TOKENS], list(following)
    for _ in range(_MOST_BLOCKS):
        if len(block) < SEGMENT_TOKENS:
            break
        node = hasher.child(node, block)
        block = tier.index.latest_segment(node)
        stored.extend(block)
    return tokens[:shared], tuple(stored)
