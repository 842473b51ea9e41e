"""Conversations whose caches are live in RAM, finished or running: what each holds, which parts are still to be captured for disk, and
look-up by prefix.

Runs on the thread that owns MLX. Knows nothing of tiers or disks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from forerun.bank import policy
from forerun.bank.match import PrefixChain
from forerun.bank.tier.history import Memo, MemoAnchor, Session
from forerun.state.cache import Cache, Snapshot
from forerun.state.conversion import extract, extract_snapshot
from forerun.state.record import SEGMENT_TOKENS, PrefixHasher, Record, RecordInfo
from forerun.text.partial_match import num_common


@dataclass(frozen=True, slots=True)
class CaptureUnit:
    """One record that can be copied out of a live cache: at most SEGMENT_TOKENS rows, or one snapshot. Bounds the delay of a capture."""

    info: RecordInfo
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class UnsavedState:
    """What of a turn was not saved before the next one began: positions of snapshots, and memos."""

    snapshots: frozenset[int]
    memos: tuple[Memo, ...]


NOTHING_UNSAVED = UnsavedState(frozenset(), ())


@dataclass(slots=True, eq=False)
class LiveConversation:
    """A conversation in RAM. tokens: those that `cache` holds. snapshots: in order of position. turns: how many it has had.

    is_running: a request is using `cache`, which the engine replaces when it changes its layout; `tokens` are the prompt's, of which the
    cache holds those prefilled so far, and `snapshots` is the engine's list, which grows meanwhile.

    memos: of its last turns, to be stored with it. pending: units still to be written to disk. used_s: time of last use, Unix seconds.
    session_row: what the disk's index will hold of it once everything is written. nodes: node keys of its tokens. head: tokens of its first
    message, 0 if unknown.
    title, client: as in its row. agent: that sent its last turn, "" if unknown. message_end: of its last prompt, see `FinishedTurn`; -1 if
    unknown.
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
    session_row: Session | None = None
    head: int = 0
    title: str = ""
    client: str = ""
    agent: str = ""
    message_end: int = -1
    is_running: bool = False
    nodes: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.hasher.nodes(self.tokens)

    def units(self, snapshots: Collection[Snapshot]) -> Iterator[CaptureUnit]:
        """Units of all tokens' rows, then of these snapshots."""
        for depth, node in enumerate(self.nodes):
            if tokens := self.block(depth):
                yield CaptureUnit(self.hasher.info("segment", node, depth * SEGMENT_TOKENS, tokens), None)
        yield from map(self.snapshot_unit, snapshots)

    def snapshot_unit(self, snapshot: Snapshot) -> CaptureUnit:
        """The unit of a snapshot of these tokens."""
        depth = snapshot.position // SEGMENT_TOKENS
        start = depth * SEGMENT_TOKENS
        return CaptureUnit(self.hasher.info("snapshot", self.nodes[depth], start, tuple(self.tokens[start : snapshot.position])), snapshot)

    def capture(self, unit: CaptureUnit) -> Record:
        """The unit's record, its bytes copied out of the cache."""
        info, snapshot = unit.info, unit.snapshot
        return Record.of(info, extract(self.cache, info.start, info.stop) if snapshot is None else extract_snapshot(snapshot))

    def block(self, depth: int) -> tuple[int, ...]:
        """The tokens after the node of this depth, at most a block of them."""
        return tuple(self.tokens[depth * SEGMENT_TOKENS : (depth + 1) * SEGMENT_TOKENS])

    def session_of(self, keys: Iterable[str]) -> Session:
        """The conversation's row for an index in which it consists of the records of these keys."""
        size = self.turns, len(self.tokens)
        return Session(self.tenant, self.session, "", self.used_s, *size, False, tuple(keys), self.title, self.client)

    def snapshot_within(self, depth: int, rest: tuple[int, ...]) -> Snapshot | None:
        """The deepest snapshot in the block of this depth that lies within `rest`, a prompt's tokens in that block."""
        start = depth * SEGMENT_TOKENS
        shared = start + num_common(self.block(depth), rest)
        return next((s for s in reversed(self.snapshots) if start <= s.position <= shared and s.position // SEGMENT_TOKENS == depth), None)

    def anchor(self, memo: Memo) -> MemoAnchor:
        """Where a memo of this conversation hangs: the memo's last block, as far as its tokens are here."""
        stop = min(memo.stop, len(self.tokens))
        depth = (stop - 1) // SEGMENT_TOKENS
        return MemoAnchor(self.hasher.root, self.nodes[depth], self.block(depth)[: stop - depth * SEGMENT_TOKENS])

    @property
    def tenant(self) -> str:
        """Its owner."""
        return self.hasher.tenant

    @property
    def num_bytes(self) -> int:
        """Bytes of the cache and the snapshots."""
        return self.cache.num_bytes + sum(s.num_bytes for s in self.snapshots)

    @property
    def rank_s(self) -> float:
        """Its eviction rank."""
        return policy.rank_s(self.used_s, self.turns, 1.0)


@dataclass(frozen=True, slots=True)
class ReachablePrefix:
    """A snapshot of a live conversation from which a prompt can continue. is_own: the request names that conversation."""

    live: LiveConversation
    snapshot: Snapshot
    is_own: bool

    @property
    def value_tokens(self) -> int:
        """Its position, plus what may be computed again rather than copy a conversation of another name."""
        return self.snapshot.position + policy.OWN_TOKENS * self.is_own

    def can_be_taken_over(self, session: str | None, agent: str) -> bool:
        """Whether a request for this session (None: any) may continue in the cache itself. What is another agent's is copied."""
        live = self.live
        if live.is_running or (session is None and self.is_of_another(agent)):
            return False
        head = max(live.head, live.snapshots[0].position)
        return session in (None, live.session) and policy.takes_over(live.cache.length, self.snapshot.position, head)

    def is_of_another(self, agent: str) -> bool:
        """Whether the conversation is known to be another agent's."""
        return bool(agent and self.live.agent) and agent != self.live.agent


class LiveConversations:
    """Live conversations in order of arrival, and by node key."""

    def __init__(self) -> None:
        self._all: list[LiveConversation] = []
        self._at: dict[str, list[LiveConversation]] = {}

    def __iter__(self) -> Iterator[LiveConversation]:
        return iter(list(self._all))

    def __contains__(self, live: LiveConversation) -> bool:
        return live in self._all

    def __len__(self) -> int:
        return len(self._all)

    def add(self, live: LiveConversation) -> None:
        """Add a conversation."""
        self._all.append(live)
        for node in live.nodes:
            self._at.setdefault(node, []).append(live)

    def remove(self, live: LiveConversation) -> None:
        """Remove a conversation."""
        self._all.remove(live)
        for node in live.nodes:
            self._at[node].remove(live)
            if not self._at[node]:
                del self._at[node]

    def of(self, tenant: str, session: str) -> list[LiveConversation]:
        """Those of one session: several if requests continued from the same snapshot concurrently."""
        return [live for live in self if (live.tenant, live.session) == (tenant, session)]

    def clear(self) -> None:
        """Remove all."""
        self._all.clear()
        self._at.clear()

    def best(self, chain: PrefixChain, session: str | None, excluded: Collection[int]) -> ReachablePrefix | None:
        """The snapshot within the prompt that is worth most; of equals that of the conversation used last. excluded: `id`s of conversations
        that are passed over.
        """
        best: ReachablePrefix | None = None
        bonus_tokens = policy.OWN_TOKENS if session else 0
        for depth in reversed(range(len(chain.nodes))):
            if best and best.value_tokens >= chain.start(depth + 1) + bonus_tokens:
                break
            live = [x for x in self._at.get(chain.nodes[depth], ()) if id(x) not in excluded]
            found = [
                ReachablePrefix(x, snapshot, x.session == session)
                for x in live
                if (snapshot := x.snapshot_within(depth, chain.rest(depth)))
            ]
            best = max([*found, *filter(None, [best])], key=lambda r: (r.value_tokens, r.live.used_s), default=None)
        return best

    def nearest(self, chain: PrefixChain) -> tuple[int, tuple[int, ...]]:
        """Length of the longest prefix that the prompt shares with a live conversation, and the rest of that conversation's block."""
        for depth in reversed(range(len(chain.nodes))):
            blocks = [x.block(depth) for x in self._at.get(chain.nodes[depth], ())]
            if blocks:
                shared, block = max(((num_common(b, chain.rest(depth)), b) for b in blocks), key=lambda x: (x[0], len(x[1])))
                return chain.start(depth) + shared, block[shared:]
        return 0, ()
