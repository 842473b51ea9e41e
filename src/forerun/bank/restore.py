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
from forerun.bank.live import NOTHING_LEFT, Left, Live, Reach
from forerun.bank.match import Match, Plan, Trail, match
from forerun.bank.ram import Ram
from forerun.bank.saving import NO_COPY, Saving
from forerun.bank.tier.base import Tier
from forerun.bank.tier.format import file_bytes
from forerun.bank.why import Inquiry, Problems, Why
from forerun.errors import BankError, DamagedRecordError
from forerun.state.cache import Cache, Snapshot
from forerun.state.layout import L
from forerun.state.record import Chain
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
    why: Why
    marks: tuple[Snapshot, ...]
    session: str
    turns: int
    read_bytes: int
    left: Left = NOTHING_LEFT

    def apart(self) -> Restored[L]:
        """The same, for a conversation of its own that only begins alike."""
        return replace(self, session=new_session(), turns=0)


@dataclass(frozen=True, slots=True)
class Stock:
    """What a bank has to restore from. tiers: RAM's, then the disk's if there is one; saving: None if there is none."""

    arena: Arena
    ram: Ram
    tiers: Sequence[Tier]
    saving: Saving | None
    inquiry: Inquiry


@dataclass(frozen=True, slots=True)
class Restoring(Generic[L]):
    """Looks for the state of one prompt, of which `trail` has the tokens. Call `run` once. room_tokens: beyond the prompt."""

    stock: Stock
    trail: Trail
    chain: Chain
    session: str | None
    layout: L
    room_tokens: int
    problems: Problems = field(default_factory=Problems)

    def run(self) -> Restored[L]:
        """The state of as many tokens as can be had."""
        has_waited = False
        while True:
            reach = self.stock.ram.lives.best(self.trail, self.session, self.problems.failed_lives)
            due = 0 if has_waited else self._due()  # before the look-up: what arrives in between is found, or waited for in vain
            found, plan = self._look_up()
            in_ram, stored = reach.mark.position if reach else 0, plan.position if plan else 0
            if due > max(in_ram, stored):
                has_waited = True
                self._wait()
            elif reach and reach.worth_tokens >= stored and reach.may_be_taken(self.session):
                return self._take(reach, found)
            elif reach and in_ram > stored:
                self._settle(reach.live)
            elif plan is None:
                return cold(self.stock.arena, self.session, self.layout, self._room_after(0), self._why(0, found))
            elif loaded := self._load(plan):
                return self._restored(plan, *loaded, found)

    def _why(self, reused: int, found: Match | None) -> Why:
        return self.stock.inquiry.why(self.problems, reused, found, self.trail, self.chain.tenant)

    def _room_after(self, position: int) -> int:
        return len(self.trail.tokens) - position + self.room_tokens

    def _look_up(self) -> tuple[Match | None, Plan | None]:
        """What the tiers have of the prompt, and the deepest mark that has not failed yet. A tier that fails is none."""
        try:
            found = match(self.stock.tiers, self.chain, self.trail)
            return found, next((plan for plan in found.plans() if plan.mark.key not in self.problems.failed_marks), None)
        except BankError as error:
            self.problems.add(error, None)
            return None, None

    def _due(self) -> int:
        """The deepest needed mark that is on its way to the disk. To compute it again would take longer than to wait: a conversation
        larger than RAM leaves it at the end of every turn, and its next turn may begin at once.
        """
        waiting = self.stock.saving.writer.waiting() if self.stock.saving else []
        return max((record.stop for record in waiting if self.trail.passes(record)), default=0)

    def _wait(self) -> None:
        if self.stock.saving:
            self.stock.saving.writer.wait_for(self.trail.passes, _WRITE_WAIT_S)

    def _take(self, reach: Reach, found: Match | None) -> Restored[L]:
        """Go on in the live cache itself. What is pending is handed over first, since the cache is about to change hands."""
        live, position, why = reach.live, reach.mark.position, self._why(reach.mark.position, found)
        left = self.stock.saving.hand_over(live, position) if self.stock.saving else NOTHING_LEFT
        self.stock.ram.lives.remove(live)
        live.cache.cut(reach.mark)
        live.cache.store.reserve(self._room_after(0))
        marks = tuple(m for m in live.marks if m.position <= position)
        return Restored(relayout(live.cache, self.layout), position, "ram", why, marks, live.session, live.turns, 0, left)

    def _settle(self, live: Live) -> None:
        """Let several go on from a live conversation. What cannot be copied is passed over."""
        try:
            self.stock.ram.settle(live)
        except NO_COPY as error:
            self.problems.pass_over(live, error)

    def _load(self, plan: Plan) -> tuple[Cache[L], int] | None:
        """The cache of a plan, and bytes read from disk for it. None if it cannot be had, for want of memory too: `problems` then knows.
        What only shows here to be damaged is set aside.
        """
        try:
            *segments, mark = records = plan.load()
            read_bytes = sum(file_bytes(record.info) for place, record in zip(plan.places, records, strict=True) if place.is_on_disk)
            return materialise(self.stock.arena, segments, mark, self.layout, self._room_after(plan.position)), read_bytes
        except (KeyError, BankError, MemoryError, RuntimeError) as error:
            self.problems.add(error, plan)
            if isinstance(error, DamagedRecordError):
                self._set_aside(plan, error.key)
            return None

    def _set_aside(self, plan: Plan, key: str) -> None:
        try:
            plan.set_aside(key)
        except BankError as error:
            self.problems.add(error, None)

    def _restored(self, plan: Plan, cache: Cache[L], read_bytes: int, found: Match | None) -> Restored[L]:
        name, uses, turns = self._owner(plan)
        now_s, on_disk = time.time(), [place.key for place in plan.places if place.is_on_disk]
        rank_s = retain.rank_s(now_s, uses, 1.0)
        if self.stock.saving:
            self.stock.saving.writer.touch(dict.fromkeys(on_disk, rank_s), now_s)
        self.stock.ram.memory.index.touch({place.key: rank_s for place in plan.places if not place.is_on_disk}, now_s)
        source: Source = "ssd" if on_disk else "ram"
        why, marks, session = self._why(plan.position, found), (cache.snapshot(),), self.session or name or new_session()
        return Restored(cache, plan.position, source, why, marks, session, turns, read_bytes)

    def _owner(self, plan: Plan) -> tuple[str, int, int]:
        """The name of the conversation that goes on at the plan's mark, "" if its own end lies elsewhere, as that of one which only begins
        alike; how often the mark was used; and how many turns the conversation of this request has had, none if it only begins alike. An
        index that does not say is one more reason, and the state is good all the same.
        """
        index = plan.mark.tier.index
        try:
            entry = index.entry(plan.mark.key)
            stored = index.session(entry.tenant, entry.session) if entry else None
            name = stored.id if stored and retain.keeps_name(stored.num_tokens, plan.position) else ""
            own = index.session(entry.tenant, self.session or name) if entry else None
        except BankError as error:
            self.problems.add(error, None)
            return "", 0, 0
        uses = entry.uses if entry else 0
        return name, uses, own.turns if own else 0 if stored else uses


def cold(arena: Arena, session: str | None, layout: L, room_tokens: int, why: Why) -> Restored[L]:
    """An empty cache, and why."""
    return Restored(materialise(arena, [], None, layout, room_tokens), 0, "cold", why, (), session or new_session(), 0, 0)


def new_session() -> str:
    """An id for a conversation to which nobody gave one."""
    return secrets.token_hex(6)
