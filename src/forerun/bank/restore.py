"""The one path that restores a prompt's state: from a live cache, which is taken over or forked, from records, or not at all; always to a
cache in the requested layout.

Runs on the thread that owns MLX. Knows nothing of retention policy on disk, of models' forward passes or of requests.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from forerun.bank import policy
from forerun.bank.live import NOTHING_UNSAVED, LiveConversations, ReachablePrefix, UnsavedState
from forerun.bank.match import PrefixChain, PrefixMatch, RestorePlan, match
from forerun.bank.miss_reason import MissExplainer, MissReason, RestoreProblems
from forerun.bank.ram import Ram
from forerun.bank.running_turns import RunningTurn
from forerun.bank.saver import NO_COPY, DiskSaver
from forerun.bank.tier.base import Tier
from forerun.bank.tier.format import file_bytes
from forerun.errors import BankError, DamagedRecordError
from forerun.state.cache import Cache, Snapshot
from forerun.state.conversion import fork, materialise, relayout
from forerun.state.layout import L
from forerun.state.record import PrefixHasher
from forerun.state.store import Arena
from forerun.values import Source


@dataclass(frozen=True, slots=True)
class RestoredState(Generic[L]):
    """A cache in the requested layout that holds the first `reused_tokens` of the prompt; source "cold": it is empty.

    miss_reason: why no more was reused. snapshots: those that exist already within these tokens. session: the conversation's id.
    turns: how many it has had. read_bytes: of the record files read. unsaved: what of its last turn is not on disk yet.
    used_s: now, Unix seconds: the time of last use of all that the turn stores, during its prefill and at its end. forked_from: id of the
    live conversation that the state was copied from, which continues on its own; "" if none. running: whether its conversation was removed
    since.
    """

    cache: Cache[L]
    reused_tokens: int
    source: Source
    miss_reason: MissReason
    snapshots: tuple[Snapshot, ...]
    session: str
    turns: int
    read_bytes: int
    unsaved: UnsavedState = NOTHING_UNSAVED
    used_s: float = field(default_factory=time.time)
    forked_from: str = ""
    running: RunningTurn = field(default_factory=RunningTurn)

    def apart(self) -> RestoredState[L]:
        """The same state, as a new conversation that only shares the prefix."""
        self.running.session = new_session()
        return replace(self, session=self.running.session, turns=0)


@dataclass(frozen=True, slots=True)
class RestoreSources:
    """Where a bank restores from. running: conversations that are forked only. tiers: the disk, if there is one. saver: None without
    a disk.
    """

    arena: Arena
    ram: Ram
    running: LiveConversations
    tiers: Sequence[Tier]
    saver: DiskSaver | None
    explainer: MissExplainer


@dataclass(frozen=True, slots=True)
class RestoreContext(Generic[L]):
    """One restore: the prompt's chain, the requested session and layout, rows needed beyond the prompt, what failed so far, and which agent
    asks.
    """

    sources: RestoreSources
    chain: PrefixChain
    hasher: PrefixHasher
    session: str | None
    layout: L
    headroom_tokens: int
    agent: str = ""
    problems: RestoreProblems = field(default_factory=RestoreProblems)

    def rows_after(self, position: int) -> int:
        """Rows that will be added behind `position`: the rest of the prompt, and the headroom."""
        return len(self.chain.tokens) - position + self.headroom_tokens

    def miss_reason(self, reused: int, found: PrefixMatch | None) -> MissReason:
        """Why only `reused` tokens are reused."""
        return self.sources.explainer.explain(self.problems, reused, found, self.chain, self.hasher.tenant)


def restore(context: RestoreContext[L]) -> RestoredState[L]:
    """The state of as many of the prompt's tokens as possible."""
    while True:
        reach, (found, plan) = _in_ram(context), _look_up(context)
        in_ram, stored = reach.snapshot.position if reach else 0, plan.position if plan else 0
        if reach and reach.value_tokens >= stored and reach.can_be_taken_over(context.session, context.agent):
            return _taken_over(context, reach, found)
        if reach and in_ram >= stored:
            if forked := _forked(context, reach, found):
                return forked
        elif plan is None:
            return cold(context.sources.arena, context.session, context.layout, context.rows_after(0), context.miss_reason(0, found))
        elif loaded := _load(context, plan):
            return _restored(context, plan, *loaded, found)


def continued(context: RestoreContext[Any]) -> str:
    """Id of the conversation that `restore` would continue, "" for a new one."""
    reach, (_, plan) = _in_ram(context), _look_up(context)
    if reach and reach.snapshot.position >= (plan.position if plan else 0):
        return reach.live.session if reach.can_be_taken_over(context.session, context.agent) else _name(reach, context.agent)
    return _owner(context, plan)[0] if plan else ""


def is_write_due(context: RestoreContext[Any]) -> bool:
    """Whether the write queue holds a deeper snapshot of the prompt than `restore` would use. Waiting for it is faster than computing it
    again: a conversation larger than RAM leaves it after every turn, and its next turn may begin at once.
    """
    waiting = context.sources.saver.writer.waiting() if context.sources.saver else []  # before the look-up, which finds what is written now
    due = max((record.info.stop for record in waiting if context.chain.reaches(record)), default=0)
    if not due:
        return False
    reach, (_, plan) = _in_ram(context), _look_up(context)
    return due > max(reach.snapshot.position if reach else 0, plan.position if plan else 0)


def cold(arena: Arena, session: str | None, layout: L, num_rows: int, miss_reason: MissReason) -> RestoredState[L]:
    """An empty cache with capacity for `num_rows`."""
    return RestoredState(materialise(arena, [], None, layout, num_rows), 0, "cold", miss_reason, (), session or new_session(), 0, 0)


def new_session() -> str:
    """A random id for a conversation without one."""
    return secrets.token_hex(6)


def _in_ram(context: RestoreContext[L]) -> ReachablePrefix | None:
    """The snapshot of a conversation in RAM that is worth most; of equals one of a finished one. Those whose pages were lost go."""
    for live in [live for live in context.sources.ram.live if live.cache.is_broken]:
        context.sources.ram.release(live)
        context.problems.skip_live(live, RuntimeError("its pages were lost with a failed step"))
    indexes = (context.sources.ram.live, context.sources.running)
    reaches = (index.best(context.chain, context.session, context.problems.failed_live) for index in indexes)
    return max(filter(None, reaches), key=lambda reach: reach.value_tokens, default=None)


def _look_up(context: RestoreContext[L]) -> tuple[PrefixMatch | None, RestorePlan | None]:
    """What the tiers hold of the prompt, and the plan for the deepest snapshot that has not failed yet. A failing tier holds nothing."""
    try:
        found = match(context.sources.tiers, context.hasher, context.chain)
        return found, next((plan for plan in found.plans() if plan.snapshot.key not in context.problems.failed_snapshots), None)
    except BankError as error:
        context.problems.add(error, None)
        return None, None


def _taken_over(context: RestoreContext[L], reach: ReachablePrefix, found: PrefixMatch | None) -> RestoredState[L]:
    """Resume in the live cache itself, without a copy. What is pending is saved first, since the cache changes owner."""
    live, position, miss_reason = reach.live, reach.snapshot.position, context.miss_reason(reach.snapshot.position, found)
    unsaved = context.sources.saver.hand_over(live, position) if context.sources.saver else NOTHING_UNSAVED
    context.sources.ram.live.remove(live)
    live.cache.truncate(reach.snapshot)
    live.cache.store.reserve(context.rows_after(0))
    snapshots = tuple(s for s in live.snapshots if s.position <= position)
    return RestoredState(
        relayout(live.cache, context.layout), position, "ram", miss_reason, snapshots, live.session, live.turns, 0, unsaved
    )


def _forked(context: RestoreContext[L], reach: ReachablePrefix, found: PrefixMatch | None) -> RestoredState[L] | None:
    """A copy of the live state, whose owner keeps it; None if it cannot be copied, also for lack of memory: noted in `problems`."""
    live, position = reach.live, reach.snapshot.position
    try:
        cache = fork(live.cache, reach.snapshot, context.layout, context.rows_after(position))
    except NO_COPY as error:
        context.problems.skip_live(live, error)
        return None
    session = context.session or _name(reach, context.agent) or new_session()
    turns, miss_reason = _turns(context, session), context.miss_reason(position, found)
    snapshots = tuple(s for s in live.snapshots if s.position <= position)
    return RestoredState(cache, position, "ram", miss_reason, snapshots, session, turns, 0, forked_from=live.session)


def _name(reach: ReachablePrefix, agent: str) -> str:
    """Id of the conversation that a copy continues, "" if it only shares the prefix or is another agent's."""
    live = reach.live
    is_same = not (live.is_running or reach.is_of_another(agent))
    return live.session if is_same and policy.keeps_name(len(live.tokens), reach.snapshot.position) else ""


def _turns(context: RestoreContext[Any], session: str) -> int:
    """How many turns this conversation has had; if the index fails, none, which is noted in `problems`."""
    tenant, indexes = context.hasher.tenant, (context.sources.ram.live, context.sources.running)
    in_ram = [live.turns for index in indexes for live in index.of(tenant, session)]
    try:
        stored = [found.turns for tier in context.sources.tiers if (found := tier.index.session(tenant, session))]
        return max([*in_ram, *stored], default=0)
    except BankError as error:
        context.problems.add(error, None)
        return 0


def _load(context: RestoreContext[L], plan: RestorePlan) -> tuple[Cache[L], int] | None:
    """The plan's cache, and the bytes read from disk for it; None if it fails, also for lack of memory: noted in `problems`. A record whose
    damage shows only here is quarantined.
    """
    try:
        *segments, snapshot = records = plan.load()
        read_bytes = sum(file_bytes(record.info) for record in records)
        return materialise(context.sources.arena, segments, snapshot, context.layout, context.rows_after(plan.position)), read_bytes
    except (KeyError, BankError, MemoryError, RuntimeError) as error:
        context.problems.add(error, plan)
        if isinstance(error, DamagedRecordError):
            _set_aside(context, plan, error.key)
        return None


def _set_aside(context: RestoreContext[L], plan: RestorePlan, key: str) -> None:
    try:
        plan.set_aside(key)
    except BankError as error:
        context.problems.add(error, None)


def _restored(
    context: RestoreContext[L], plan: RestorePlan, cache: Cache[L], read_bytes: int, found: PrefixMatch | None
) -> RestoredState[L]:
    name, uses, turns = _owner(context, plan)
    now_s = time.time()
    if context.sources.saver:
        context.sources.saver.writer.touch({at.key: policy.rank_s(now_s, uses, 1.0) for at in plan.locations}, now_s)
    miss_reason, session = context.miss_reason(plan.position, found), context.session or name or new_session()
    return RestoredState(cache, plan.position, plan.snapshot.tier.source, miss_reason, (cache.snapshot(),), session, turns, read_bytes)


def _owner(context: RestoreContext[L], plan: RestorePlan) -> tuple[str, int, int]:
    """(id, uses, turns). id: of the conversation that is resumed at the plan's snapshot, "" if it only shares the prefix. uses: of that
    snapshot. turns: that the requested conversation has had, 0 if it only shares the prefix. If the index fails, the state is valid all the
    same, and the failure is noted in `problems`.
    """
    index = plan.snapshot.tier.index
    try:
        entry = index.entry(plan.snapshot.key)
        stored = index.session(entry.tenant, entry.session) if entry else None
        name = stored.id if stored and policy.keeps_name(stored.num_tokens, plan.position) else ""
        own = index.session(entry.tenant, context.session or name) if entry else None
    except BankError as error:
        context.problems.add(error, None)
        return "", 0, 0
    uses = entry.uses if entry else 0
    return name, uses, own.turns if own else 0 if stored else uses
