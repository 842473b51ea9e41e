"""Look-up of a prompt in the tiers: which stored records reach furthest into it (chains of segments that end in a snapshot, deepest first),
and how a stored conversation continues where the prompt leaves it, in the token ids that were sampled (see engine/prompt_encoding.py).

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
    """A prompt's tokens and their node keys: hashed once, needed by every look-up."""

    tokens: tuple[int, ...]
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, hasher: PrefixHasher, tokens: Sequence[int]) -> PrefixChain:
        """The chain of these tokens."""
        return cls(tuple(tokens), tuple(hasher.nodes(tokens)))

    def reaches(self, record: Record) -> bool:
        """Whether the record is a snapshot of a prefix of these tokens."""
        info = record.info
        if info.kind != "snapshot" or info.stop > len(self.tokens):
            return False
        return self.nodes[info.start // SEGMENT_TOKENS] == info.parent and self.tokens[info.start : info.stop] == info.tokens

    def meets(self, info: RecordInfo) -> bool:
        """Whether the record hangs from a node of the chain and begins as the prompt continues there: whether it could be restored from."""
        depth = info.start // SEGMENT_TOKENS
        if depth >= len(self.nodes) or self.nodes[depth] != info.parent:
            return False
        return not info.tokens or info.tokens[:1] == self.rest(depth)[:1]

    def start(self, depth: int) -> int:
        """Tokens before the node of this depth."""
        return depth * SEGMENT_TOKENS

    def rest(self, depth: int) -> tuple[int, ...]:
        """The tokens after the node of this depth, at most a block of them."""
        return self.tokens[depth * SEGMENT_TOKENS : (depth + 1) * SEGMENT_TOKENS]


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """A record's key and the tier that holds it."""

    tier: Tier
    key: str


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Records that make the state after `position` tokens: segments without a gap from 0, and the snapshot there."""

    position: int
    segments: tuple[RecordLocation, ...]
    snapshot: RecordLocation

    @property
    def locations(self) -> tuple[RecordLocation, ...]:
        """The segments in order, then the snapshot."""
        return (*self.segments, self.snapshot)

    def load(self) -> list[Record]:
        """The records, verified, in the order of `locations`. Raises KeyError, DamagedRecordError."""
        found: dict[str, Record] = {}
        for tier in {id(p.tier): p.tier for p in self.locations}.values():
            keys = [p.key for p in self.locations if p.tier is tier]
            found |= zip(keys, tier.get_many(keys), strict=True)
        return [found[p.key] for p in self.locations]

    def set_aside(self, key: str) -> None:
        """Quarantine the record of that key, if the plan has it."""
        for location in self.locations:
            if location.key == key:
                location.tier.set_aside(key)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the tiers hold of a prompt. blocks: its leading full segments."""

    tiers: Sequence[Tier]
    chain: PrefixChain
    blocks: tuple[RecordLocation, ...]

    def nearest(self) -> tuple[int, tuple[int, ...]]:
        """Length of the longest prefix that the prompt shares with a stored conversation, and the rest of that conversation's block."""
        depth = len(self.blocks)
        found = (tier.index.nearest(self.chain.nodes[depth], self.chain.rest(depth)) for tier in self.tiers)
        shared, following = max(found, default=(0, ()), key=lambda x: (x[0], len(x[1])))
        return self.chain.start(depth) + shared, following

    def plans(self) -> Iterator[RestorePlan]:
        """Plans for the reachable snapshots, deepest first; of equals the one in the earlier tier."""
        for depth in range(len(self.blocks), -1, -1):
            node, rest = self.chain.nodes[depth], self.chain.rest(depth)
            snapshots = [(info, tier) for tier in self.tiers for info in tier.index.along("snapshot", node, rest)]
            for info, tier in sorted(snapshots, key=lambda found: -len(found[0].tokens)):
                tail = self._tail(info)
                if tail is not None:
                    yield RestorePlan(info.stop, self.blocks[:depth] + tail, RecordLocation(tier, info.key))

    def _tail(self, snapshot: RecordInfo) -> tuple[RecordLocation, ...] | None:
        """The segment with the rows between the snapshot's node and the snapshot; () at the node itself; None if no tier has it."""
        if not snapshot.tokens:
            return ()
        found = ((tier, tier.index.segment_over(snapshot.parent, snapshot.tokens)) for tier in self.tiers)
        return next(((RecordLocation(tier, info.key),) for tier, info in found if info is not None), None)


def match(tiers: Sequence[Tier], hasher: PrefixHasher, chain: PrefixChain) -> PrefixMatch:
    """Look the prompt up, at the cost of one hash and one row per block. Of a record in several tiers the earlier tier's is used."""
    keys = [hasher.key("segment", node, chain.rest(depth)) for depth, node in enumerate(chain.nodes[:-1])]
    where = {key: tier for tier in reversed(tiers) for key in tier.index.present(keys)}
    num_blocks = next((i for i, key in enumerate(keys) if key not in where), len(keys))
    return PrefixMatch(tiers, chain, tuple(RecordLocation(where[key], key) for key in keys[:num_blocks]))


def recall(tier: Tier, hasher: PrefixHasher, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the prompt shares with the stored conversation of the longest common prefix, and the stored tokens after these: up to
    that conversation's end, or _MOST_BLOCKS blocks; () if the prompt does not diverge from it. Raises BankError.
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
