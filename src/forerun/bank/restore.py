"""The one path by which a prompt gets its state back: out of a live conversation, out of records, or from nothing; always as a cache in the
layout that the caller asks for.

Runs on the thread that owns MLX. Knows nothing of what is worth keeping on disk, of models' forward passes or of requests.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

from forerun.bank import retain
from forerun.bank.live import NOTHING_UNSAVED, LiveConversation, ReachablePrefix, UnsavedState
from forerun.bank.match import PrefixChain, PrefixMatch, RestorePlan, match
from forerun.bank.miss_reason import MissExplainer, MissReason, RestoreProblems
from forerun.bank.ram import Ram
from forerun.bank.saver import NO_COPY, DiskSaver
from forerun.bank.tier.base import Tier
from forerun.bank.tier.format import file_bytes
from forerun.errors import BankError, DamagedRecordError
from forerun.state.cache import Cache, Snapshot
from forerun.state.layout import L
from forerun.state.record import PrefixHasher
from forerun.state.records import materialise, relayout
from forerun.state.store import Arena
from forerun.values import Source

_WRITE_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Restored(Generic[L]):
    """A cache in the layout that was asked for, holding the first `reused_tokens` of the prompt; source "cold": it is empty.

    why: less was not reused. marks: of these tokens, known already. session: whose conversation it is.
    turns: how often it was used before. read_bytes: of the files that were read for it. left: what of its last turn is still to be saved.
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

    def apart(self) -> Restored[L]:
        """The same, for a conversation of its own that only begins alike."""
        return replace(self, session=new_session(), turns=0)


@dataclass(frozen=True, slots=True)
class RestoreSources:
    """What a bank has to restore from. tiers: RAM's, then the disk's if there is one; saving: None if there is none."""

    arena: Arena
    ram: Ram
    tiers: Sequence[Tier]
    saver: DiskSaver | None
    explainer: MissExplainer


@dataclass(frozen=True, slots=True)
class Restoring(Generic[L]):
    """Looks for the state of one prompt, of which `trail` has the tokens. Call `run` once. headroom_tokens: beyond the prompt."""

    sources: RestoreSources
    chain: PrefixChain
    hasher: PrefixHasher
    session: str | None
    layout: L
    headroom_tokens: int
    problems: RestoreProblems = field(default_factory=RestoreProblems)

    def run(self) -> Restored[L]:
        """The state of as many tokens as can be had."""
        has_waited = False
        while True:
            reach = self.sources.ram.live.best(self.chain, self.session, self.problems.failed_live)
            due = 0 if has_waited else self._due()  # before the look-up: what arrives in between is found, or waited for in vain
            found, plan = self._look_up()
            in_ram, stored = reach.snapshot.position if reach else 0, plan.position if plan else 0
            if due > max(in_ram, stored):
                has_waited = True
                self._wait()
            elif reach and reach.value_tokens >= stored and reach.can_be_taken_over(self.session):
                return self._take(reach, found)
            elif reach and in_ram > stored:
                self._settle(reach.live)
            elif plan is None:
                return cold(self.sources.arena, self.session, self.layout, self._headroom_after(0), self._reason(0, found))
            elif loaded := self._load(plan):
                return self._restored(plan, *loaded, found)

    def _reason(self, reused: int, found: PrefixMatch | None) -> MissReason:
        return self.sources.explainer.reason(self.problems, reused, found, self.chain, self.hasher.tenant)

    def _headroom_after(self, position: int) -> int:
        return len(self.chain.tokens) - position + self.headroom_tokens

    def _look_up(self) -> tuple[PrefixMatch | None, RestorePlan | None]:
        """What the tiers have of the prompt, and the deepest mark that has not failed yet. A tier that fails is none."""
        try:
            found = match(self.sources.tiers, self.hasher, self.chain)
            return found, next((plan for plan in found.plans() if plan.snapshot.key not in self.problems.failed_snapshots), None)
        except BankError as error:
            self.problems.add(error, None)
            return None, None

    def _due(self) -> int:
        """The deepest needed mark that is on its way to the disk. To compute it again would take longer than to wait: a conversation
        larger than RAM leaves it at the end of every turn, and its next turn may begin at once.
        """
        waiting = self.sources.saver.writer.waiting() if self.sources.saver else []
        return max((record.stop for record in waiting if self.chain.passes(record)), default=0)

    def _wait(self) -> None:
        if self.sources.saver:
            self.sources.saver.writer.wait_for(self.chain.passes, _WRITE_WAIT_S)

    def _take(self, reach: ReachablePrefix, found: PrefixMatch | None) -> Restored[L]:
        """Go on in the live cache itself. What is pending is handed over first, since the cache is about to change hands."""
        live, position, reason = reach.live, reach.snapshot.position, self._reason(reach.snapshot.position, found)
        left = self.sources.saver.hand_over(live, position) if self.sources.saver else NOTHING_UNSAVED
        self.sources.ram.live.remove(live)
        live.cache.cut(reach.snapshot)
        live.cache.store.reserve(self._headroom_after(0))
        snapshots = tuple(m for m in live.snapshots if m.position <= position)
        return Restored(relayout(live.cache, self.layout), position, "ram", reason, snapshots, live.session, live.turns, 0, left)

    def _settle(self, live: LiveConversation) -> None:
        """Let several go on from a live conversation. What cannot be copied is passed over."""
        try:
            self.sources.ram.settle(live)
        except NO_COPY as error:
            self.problems.skip_live(live, error)

    def _load(self, plan: RestorePlan) -> tuple[Cache[L], int] | None:
        """The cache of a plan, and bytes read from disk for it. None if it cannot be had, for want of memory too: `problems` then knows.
        What only shows here to be damaged is set aside.
        """
        try:
            *segments, snapshot = records = plan.load()
            read_bytes = sum(
                file_bytes(record.info) for location, record in zip(plan.locations, records, strict=True) if location.is_on_disk
            )
            return materialise(self.sources.arena, segments, snapshot, self.layout, self._headroom_after(plan.position)), read_bytes
        except (KeyError, BankError, MemoryError, RuntimeError) as error:
            self.problems.add(error, plan)
            if isinstance(error, DamagedRecordError):
                self._set_aside(plan, error.key)
            return None

    def _set_aside(self, plan: RestorePlan, key: str) -> None:
        try:
            plan.set_aside(key)
        except BankError as error:
            self.problems.add(error, None)

    def _restored(self, plan: RestorePlan, cache: Cache[L], read_bytes: int, found: PrefixMatch | None) -> Restored[L]:
        name, uses, turns = self._owner(plan)
        now_s, on_disk = time.time(), [location.key for location in plan.locations if location.is_on_disk]
        rank_s = retain.rank_s(now_s, uses, 1.0)
        if self.sources.saver:
            self.sources.saver.writer.touch(dict.fromkeys(on_disk, rank_s), now_s)
        self.sources.ram.memory.index.touch({location.key: rank_s for location in plan.locations if not location.is_on_disk}, now_s)
        source: Source = "ssd" if on_disk else "ram"
        reason, snapshots, session = self._reason(plan.position, found), (cache.snapshot(),), self.session or name or new_session()
        return Restored(cache, plan.position, source, reason, snapshots, session, turns, read_bytes)

    def _owner(self, plan: RestorePlan) -> tuple[str, int, int]:
        """The name of the conversation that goes on at the plan's mark, "" if its own end lies elsewhere, as that of one which only begins
        alike; how often the mark was used; and how many turns the conversation of this request has had, none if it only begins alike. An
        index that does not say is one more reason, and the state is good all the same.
        """
        index = plan.snapshot.tier.index
        try:
            entry = index.entry(plan.snapshot.key)
            stored = index.session(entry.tenant, entry.session) if entry else None
            name = stored.id if stored and retain.keeps_name(stored.num_tokens, plan.position) else ""
            own = index.session(entry.tenant, self.session or name) if entry else None
        except BankError as error:
            self.problems.add(error, None)
            return "", 0, 0
        uses = entry.uses if entry else 0
        return name, uses, own.turns if own else 0 if stored else uses


def cold(arena: Arena, session: str | None, layout: L, headroom_tokens: int, reason: MissReason) -> Restored[L]:
    """An empty cache, and why."""
    return Restored(materialise(arena, [], None, layout, headroom_tokens), 0, "cold", reason, (), session or new_session(), 0, 0)


def new_session() -> str:
    """An id for a conversation to which nobody gave one."""
    return secrets.token_hex(6)
