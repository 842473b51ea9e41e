"""The conversations that are in RAM as live caches: what each holds, what of it is still to be captured for the disk, and how they are
found by what they begin with.

Runs on the thread that owns MLX. Knows nothing of tiers or disks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from forerun.bank import retain
from forerun.bank.match import PrefixChain
from forerun.bank.tier.history import MemoAnchor, Memo, Session
from forerun.state.cache import Cache, Snapshot
from forerun.state.record import SEGMENT_TOKENS, Kind, PrefixHasher, Record, RecordInfo, num_shared
from forerun.state.records import extract, extract_snapshot


@dataclass(frozen=True, slots=True)
class CaptureUnit:
    """One record that can be taken from a live cache: at most SEGMENT_TOKENS rows, or one mark. The bound on what a capture delays."""

    key: str
    parent: str
    start: int
    tokens: tuple[int, ...]
    snapshot: Snapshot | None

    @property
    def kind(self) -> Kind:
        """The record's."""
        return "segment" if self.snapshot is None else "snapshot"

    @property
    def stop(self) -> int:
        """Tokens up to its end."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class UnsavedState:
    """What of a turn there was no time to save before the next one: positions of marks, and memos."""

    snapshots: frozenset[int]
    memos: tuple[Memo, ...]


NOTHING_UNSAVED = UnsavedState(frozenset(), ())


@dataclass(slots=True)
class LiveConversation:
    """tokens: what `cache` holds, as many as its length. marks: by position, earliest first. pending: units that are to go to disk.
    used_s: when it was last used, Unix seconds. turns: how many it has had. told: what the index is to be told of it when
    all is written. memos: of its last turns, to be kept then too. nodes: of its tokens.
    """

    cache: Cache[Any]
    tokens: list[int]
    snapshots: list[Snapshot]
    hasher: PrefixHasher
    session: str
    turns: int
    memos: tuple[Memo, ...]
    pending: deque[CaptureUnit] = field(default_factory=deque)
    used_s: float = field(default_factory=time.time)
    unannounced: Session | None = None
    nodes: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.hasher.nodes(self.tokens)

    def units(self, snapshots: Collection[Snapshot]) -> Iterator[CaptureUnit]:
        """Units for all tokens, and then for these of the marks."""
        for i, node in enumerate(self.nodes):
            tokens = self.block(i)
            if tokens:
                yield CaptureUnit(self.hasher.key("segment", node, tokens), node, i * SEGMENT_TOKENS, tokens, None)
        for snapshot in snapshots:
            block = snapshot.position // SEGMENT_TOKENS
            tokens = tuple(self.tokens[block * SEGMENT_TOKENS : snapshot.position])
            yield CaptureUnit(
                self.hasher.key("snapshot", self.nodes[block], tokens), self.nodes[block], block * SEGMENT_TOKENS, tokens, snapshot
            )

    def info(self, unit: CaptureUnit) -> RecordInfo:
        """The unit's record, but for its payload."""
        return RecordInfo(unit.kind, unit.key, self.hasher.root, unit.parent, unit.start, unit.tokens, 0)

    def capture(self, unit: CaptureUnit) -> Record:
        """The unit's record, its bytes copied out of the cache."""
        payload = extract(self.cache, unit.start, unit.stop) if unit.snapshot is None else extract_snapshot(unit.snapshot)
        return Record(unit.kind, unit.key, self.hasher.root, unit.parent, unit.start, unit.tokens, payload)

    def block(self, depth: int) -> tuple[int, ...]:
        """The tokens after the node of this depth, at most a block of them."""
        return tuple(self.tokens[depth * SEGMENT_TOKENS : (depth + 1) * SEGMENT_TOKENS])

    def session_of(self, keys: Iterable[str]) -> Session:
        """What an index is told of the conversation if it consists of the records of these keys."""
        return Session(self.tenant, self.session, "", self.used_s, self.turns, len(self.tokens), False, tuple(keys))

    def snapshot_within(self, depth: int, rest: tuple[int, ...]) -> Snapshot | None:
        """The last mark in the block of this depth that lies within `rest`, a prompt's tokens in that block."""
        start = depth * SEGMENT_TOKENS
        shared = start + num_shared(self.block(depth), rest)
        return next((m for m in reversed(self.snapshots) if start <= m.position <= shared and m.position // SEGMENT_TOKENS == depth), None)

    def anchor(self, memo: Memo) -> MemoAnchor:
        """What a memo of this conversation hangs from: of its tokens, as far as they are here, those in the last block."""
        stop = min(memo.stop, len(self.tokens))
        depth = (stop - 1) // SEGMENT_TOKENS
        return MemoAnchor(self.hasher.root, self.nodes[depth], self.block(depth)[: stop - depth * SEGMENT_TOKENS])

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.hasher.tenant

    @property
    def num_bytes(self) -> int:
        """Bytes held: the cache's and the marks'."""
        return self.cache.num_bytes + sum(m.num_bytes for m in self.snapshots)

    @property
    def rank_s(self) -> float:
        """Its rank among what goes first."""
        return retain.rank_s(self.used_s, self.turns, 1.0)


@dataclass(frozen=True, slots=True)
class ReachablePrefix:
    """A mark of a live conversation at which a prompt can go on."""

    live: LiveConversation
    snapshot: Snapshot
    is_own: bool

    @property
    def value_tokens(self) -> int:
        """Its position, and what may be read again rather than copy the conversation of another name."""
        return self.snapshot.position + retain.OWN_TOKENS * self.is_own

    def can_be_taken_over(self, session: str | None) -> bool:
        """Whether a request of this name, if it has one, may go on in the cache itself."""
        live = self.live
        return session in (None, live.session) and retain.takes_over(live.cache.length, self.snapshot.position, live.snapshots[0].position)


class LiveConversations:
    """Live conversations, in the order in which they came."""

    def __init__(self) -> None:
        self._all: list[LiveConversation] = []
        self._at: dict[str, list[LiveConversation]] = {}

    def __iter__(self) -> Iterator[LiveConversation]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, live: LiveConversation) -> None:
        """Keep it."""
        self._all.append(live)
        for node in live.nodes:
            self._at.setdefault(node, []).append(live)

    def remove(self, live: LiveConversation) -> None:
        """Let go of it."""
        self._all.remove(live)
        for node in live.nodes:
            self._at[node].remove(live)
            if not self._at[node]:
                del self._at[node]

    def of(self, tenant: str, session: str) -> list[LiveConversation]:
        """Those of one conversation: several where requests went on from the same place side by side."""
        return [live for live in self if (live.tenant, live.session) == (tenant, session)]

    def clear(self) -> None:
        """Let go of all."""
        self._all.clear()
        self._at.clear()

    def best(self, chain: PrefixChain, session: str | None, passing: Collection[int]) -> ReachablePrefix | None:
        """The mark within the prompt that is worth most; of equals that of the conversation used last. passing: ids of those not asked."""
        best: ReachablePrefix | None = None
        bonus_tokens = retain.OWN_TOKENS if session else 0
        for depth in reversed(range(len(chain.nodes))):
            if best and best.value_tokens >= chain.start(depth + 1) + bonus_tokens:
                break
            live = [x for x in self._at.get(chain.nodes[depth], ()) if id(x) not in passing]
            found = [
                ReachablePrefix(x, snapshot, x.session == session)
                for x in live
                if (snapshot := x.snapshot_within(depth, chain.rest(depth)))
            ]
            best = max([*found, *filter(None, [best])], key=lambda r: (r.value_tokens, r.live.used_s), default=None)
        return best

    def nearest(self, chain: PrefixChain) -> tuple[int, tuple[int, ...]]:
        """How many leading tokens of the prompt a live conversation has too, at most, and how its block goes on after these."""
        for depth in reversed(range(len(chain.nodes))):
            blocks = [x.block(depth) for x in self._at.get(chain.nodes[depth], ())]
            if blocks:
                shared, block = max(((num_shared(b, chain.rest(depth)), b) for b in blocks), key=lambda x: (x[0], len(x[1])))
                return chain.start(depth) + shared, block[shared:]
        return 0, ()
