"""The bank: conversations' states in RAM and on disk, and the one path by which a prompt gets its state back.

A conversation is in RAM once: as a live cache, or as records. Tiers return records, never caches; `materialise` makes caches in the layout
that the caller asks for. Runs on the thread that owns MLX, but for `health`. Knows nothing of models' forward passes or of requests.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from forerun.bank import retain
from forerun.bank.figures import Figures
from forerun.bank.live import Live, Lives, Reach
from forerun.bank.match import Match, Plan, Trail, match, recall
from forerun.bank.room import Room
from forerun.bank.saving import NO_COPY, Saving
from forerun.bank.sessions import Sessions
from forerun.bank.tier.base import Tier
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.format import file_bytes
from forerun.bank.tier.history import Memo, Session
from forerun.bank.tier.index import Label
from forerun.bank.tier.memory import MemoryTier
from forerun.bank.why import Inquiry, Problems, Why
from forerun.errors import BankError, DamagedRecordError
from forerun.state.cache import Cache, Snapshot
from forerun.state.layout import L
from forerun.state.record import SEGMENT_TOKENS, Chain, Identity, RecordInfo
from forerun.state.records import materialise, relayout
from forerun.state.spec import StateSpec
from forerun.state.store import Arena
from forerun.values import BankHealth, Source

_WRITE_WAIT_S = 5.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Turned:
    """A turn that is over: whose, the how manieth, where its prompt's messages end, and how many of its marks (the last ones) are new.

    memo: what is to be known of its answer after a restart, None for nothing.
    """

    session: str
    tenant: str
    turns: int
    message_end: int
    new_marks: int
    memo: Memo | None = None


@dataclass(frozen=True, slots=True)
class Restored(Generic[L]):
    """A cache in the layout that was asked for, holding the first `reused_tokens` of the prompt; source "cold": it is empty.

    why: less was not reused. marks: of these tokens, known already. session: whose conversation it is.
    turns: how often it was used before. read_bytes: of the files that were read for it.
    """

    cache: Cache[L]
    reused_tokens: int
    source: Source
    why: Why
    marks: tuple[Snapshot, ...]
    session: str
    turns: int
    read_bytes: int


class Bank:
    """Conversations of one model. `disk` None: nothing survives the process."""

    def __init__(self, spec: StateSpec, identity: Identity, *, disk: DiskTier | None, secret: bytes, ram_limit_bytes: int) -> None:
        self._arena, self._identity, self._secret = Arena(spec), identity, secret
        self._ram_limit_bytes = ram_limit_bytes
        self._memory, self._disk = MemoryTier(), disk
        self._tiers: tuple[Tier, ...] = (self._memory,) if disk is None else (self._memory, disk)
        self._lives = Lives()
        self._saving = Saving(disk, spec, self._lives) if disk is not None else None
        self.sessions = Sessions(self._lives, self._memory, disk, self._saving, self._chain)
        self._figures = Figures(self._lives, self._memory, disk, self._saving)
        self._room = Room(self._lives, self._memory, self._saving, self._figures)
        self._inquiry = Inquiry(self._tiers, self._lives, secret, identity)

    def restore(self, tokens: Sequence[int], *, tenant: str, session: str | None, layout: L, room_tokens: int) -> Restored[L]:
        """The state of as many of `tokens` as can be had, in `layout`, with room for `room_tokens` more than the prompt. Always a cache."""
        chain, problems = self._chain(tenant), Problems()
        trail, has_waited = Trail.of(chain, tokens), False
        while True:
            reach = self._lives.best(trail, session, problems.failed_lives)
            due = 0 if has_waited else self._due(trail)  # before the look-up: what arrives in between is found, or waited for in vain
            found, plan = self._look_up(chain, trail, problems)
            in_ram, stored = reach.mark.position if reach else 0, plan.position if plan else 0
            if due > max(in_ram, stored):
                has_waited = True
                self._wait_for(trail)
            elif reach and reach.worth_tokens >= stored and self._may_take(reach, session):
                return self._take(reach, layout, len(tokens) + room_tokens, self._inquiry.why(problems, in_ram, found, trail, tenant))
            elif reach and in_ram > stored:
                self._settle(reach.live, problems)
            elif plan is None:
                return self._cold(session, layout, len(tokens) + room_tokens, self._inquiry.why(problems, 0, found, trail, tenant))
            elif loaded := self._load(plan, layout, len(tokens) - plan.position + room_tokens, problems):
                owner = self._owner(plan, problems)
                return self._restored(plan, *loaded, session, owner, self._inquiry.why(problems, plan.position, found, trail, tenant))

    def recall(self, tokens: tuple[int, ...], *, tenant: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What of `tokens` the nearest conversation on disk begins with, and how that one goes on. May be called from any thread.

        An index that fails recalls nothing: `restore`, which asks it next, is the one to say so.
        """
        try:
            return recall(self._disk, self._chain(tenant), tokens) if self._disk else ((), ())
        except BankError:
            return (), ()

    def memos(self, names: Collection[str], *, tenant: str) -> list[bytes]:
        """What is kept on disk under these names, of the tenant's conversations. As `recall` otherwise."""
        try:
            return self._disk.index.memos(self._chain(tenant).root, names) if self._disk and names else []
        except BankError:
            return []

    def bypass(self, reason: str, *, session: str | None, layout: L, room_tokens: int) -> Restored[L]:
        """An empty cache for a request that does not use the bank, for this reason."""
        return self._cold(session, layout, room_tokens, Why("bypass", reason, 0, ()))

    def remember(self, cache: Cache[Any], tokens: Sequence[int], marks: Sequence[Snapshot], turn: Turned) -> None:
        """Keep the conversation: `tokens` are what `cache` holds, `marks` are of them. Consumes the cache."""
        if cache.is_broken or cache.length != len(tokens):
            raise ValueError(f"a cache of {cache.length} tokens{' that is broken' * cache.is_broken} is not the state after {len(tokens)}")
        by_position = {m.position: m for m in marks}
        staying = retain.in_ram(sorted(by_position))
        live_marks = [by_position[p] for p in sorted(staying)]
        live = Live(cache, list(tokens), live_marks, self._chain(turn.tenant), turn.session, turn.tenant, turn.turns, turn.memo)
        if self._saving is not None:
            fresh = sorted({m.position for m in marks[len(marks) - turn.new_marks :]})
            wanted = [by_position[p] for p in sorted(retain.for_disk(fresh, turn.message_end))]
            self._saving.begin(live, wanted)
        self._lives.add(live)
        self.trim()

    def note_unstored(self, tokens: tuple[int, ...], tenant: str, why: str) -> None:
        """Note why the state after these tokens is not kept, to be told when it is missed."""
        chain = self._chain(tenant)
        node, start = chain.nodes(tokens)[-1], len(tokens) - len(tokens) % SEGMENT_TOKENS
        info = RecordInfo("mark", chain.key("mark", node, tokens[start:]), chain.root, node, start, tokens[start:], 0)
        try:
            self._memory.index.note_lost([info], "not stored", why, time.time())
        except BankError as error:  # the request has failed already, and the next one will only not be told why
            log.warning("not noted: %s", error)

    def capture_one(self) -> bool:
        """Copy one unit of what is pending for the disk. Returns whether there was one. Bounded: call it when nothing more urgent waits."""
        live = next((x for x in self._lives if x.pending), None)
        if live is None or self._saving is None or self._saving.writer.is_full:
            return False
        self._saving.capture(live)
        return True

    def trim(self) -> int:
        """Let go of what is least likely to be asked for again, until RAM is within its limit. Returns of how many conversations and
        records. What goes was captured for the disk before, if there is one.
        """
        return self._shrink(self._ram_limit_bytes)

    def give_back(self, num_bytes: int) -> int:
        """As `trim`, until so many bytes are free, or nothing is left. Returns of how many conversations and records."""
        return self._shrink(self._figures.held_bytes - num_bytes)

    def _shrink(self, limit_bytes: int) -> int:
        num_evicted = self._room.shrink(max(0, limit_bytes))
        if num_evicted:
            self._arena.shrink()
        return num_evicted

    def flush(self, limit_s: float) -> bool:
        """Write all that is pending, waiting at most `limit_s` seconds for the disk. Returns whether all is safe."""
        if self._saving is None:
            return True
        for live in self._lives:
            self._saving.capture_all(live)
        return self._saving.writer.flush(limit_s)

    def close(self) -> None:
        """Stop writing and let go of the tiers. What is still pending is lost: `flush` first."""
        if self._saving is not None:
            self._saving.writer.close()
        self._lives.clear()
        for tier in self._tiers:
            tier.close()

    @property
    def ram_bytes(self) -> int:
        """Bytes of conversations in RAM, those that wait for the disk included."""
        return self._figures.ram_bytes

    @property
    def paged_blocks(self) -> tuple[int, int]:
        """Pages that caches hold, and free ones. May be called from any thread."""
        return self._arena.num_blocks

    def health(self) -> BankHealth:
        """Figures for people. May be called from any thread."""
        return self._figures.health()

    @property
    def off_reason(self) -> str:
        """Why nothing can be reused, whatever is asked; "" if something can."""
        return "" if self._disk or self._ram_limit_bytes else "nothing is kept of conversations: bank_ram_bytes and bank_disk_bytes are 0"

    @property
    def skipped(self) -> dict[str, int]:
        """Records that could not be written, by reason."""
        return dict(self._saving.writer.skipped) if self._saving else {}

    def _look_up(self, chain: Chain, trail: Trail, problems: Problems) -> tuple[Match | None, Plan | None]:
        """What the tiers have of the prompt, and the deepest mark that has not failed yet. A tier that fails is none."""
        try:
            found = match(self._tiers, chain, trail)
            return found, next((plan for plan in found.plans() if plan.mark.key not in problems.failed_marks), None)
        except BankError as error:
            problems.add(error, None)
            return None, None

    def _due(self, trail: Trail) -> int:
        """The deepest needed mark that is on its way to the disk. To compute it again would take longer than to wait: a conversation
        larger than RAM leaves it at the end of every turn, and its next turn may begin at once.
        """
        waiting = self._saving.writer.waiting() if self._saving else []
        return max((record.stop for record in waiting if trail.passes(record)), default=0)

    def _wait_for(self, trail: Trail) -> None:
        if self._saving:
            self._saving.writer.wait_for(trail.passes, _WRITE_WAIT_S)

    def _chain(self, tenant: str) -> Chain:
        return Chain(self._secret, tenant, self._identity)

    def _may_take(self, reach: Reach, session: str | None) -> bool:
        live = reach.live
        return session in (None, live.session) and retain.takes_over(live.cache.length, reach.mark.position, live.marks[0].position)

    def _take(self, reach: Reach, layout: L, capacity: int, why: Why) -> Restored[L]:
        """Go on in the live cache itself. What is pending is handed over first, since the cache is about to change hands."""
        live, mark = reach.live, reach.mark
        if self._saving is not None:
            self._saving.hand_over(live, mark.position)
        self._lives.remove(live)
        live.cache.cut(mark)
        live.cache.store.reserve(capacity)
        marks = tuple(m for m in live.marks if m.position <= mark.position)
        return Restored(relayout(live.cache, layout), mark.position, "ram", why, marks, live.session, live.turns, 0)

    def _load(self, plan: Plan, layout: L, room_tokens: int, problems: Problems) -> tuple[Cache[L], int] | None:
        """The cache of a plan, and bytes read from disk for it. None if it cannot be had, for want of memory too: `problems` then knows.
        What only shows here to be damaged is set aside.
        """
        try:
            *segments, mark = records = plan.load()
            places = zip((*plan.segments, plan.mark), records, strict=True)
            read_bytes = sum(file_bytes(record.info) for place, record in places if place.tier is self._disk)
            return materialise(self._arena, segments, mark, layout, room_tokens), read_bytes
        except (KeyError, BankError, MemoryError, RuntimeError) as error:
            problems.add(error, plan)
            if isinstance(error, DamagedRecordError):
                self._set_aside(plan, error.key, problems)
            return None

    def _set_aside(self, plan: Plan, key: str, problems: Problems) -> None:
        try:
            plan.set_aside(key)
        except BankError as error:
            problems.add(error, None)

    def _restored(self, plan: Plan, cache: Cache[L], read_bytes: int, session: str | None, owner: tuple[str, int], why: Why) -> Restored[L]:
        places = (*plan.segments, plan.mark)
        on_disk = [p.key for p in places if p.tier is self._disk]
        (name, turns), now_s = owner, time.time()
        rank_s = retain.rank_s(now_s, turns, 1.0)
        if self._saving is not None:
            self._saving.writer.touch(dict.fromkeys(on_disk, rank_s), now_s)
        self._memory.index.touch({p.key: rank_s for p in places if p.tier is self._memory}, now_s)
        source: Source = "ssd" if on_disk else "ram"
        return Restored(cache, plan.position, source, why, (cache.snapshot(),), session or name or _new_session(), turns, read_bytes)

    def _owner(self, plan: Plan, problems: Problems) -> tuple[str, int]:
        """The name of the conversation that goes on at the plan's mark, "" if its own end lies elsewhere, as that of one which only begins
        alike; and how often the mark was used. An index that does not say is one more reason, and the state is good all the same.
        """
        index = plan.mark.tier.index
        try:
            entry = index.entry(plan.mark.key)
            stored = index.session(entry.tenant, entry.session) if entry else None
        except BankError as error:
            problems.add(error, None)
            return "", 0
        name = stored.id if stored and retain.keeps_name(stored.num_tokens, plan.position) else ""
        return name, entry.uses if entry else 0

    def _cold(self, session: str | None, layout: L, room_tokens: int, why: Why) -> Restored[L]:
        return Restored(materialise(self._arena, [], None, layout, room_tokens), 0, "cold", why, (), session or _new_session(), 0, 0)

    def _settle(self, live: Live, problems: Problems) -> None:
        """Turn a live conversation into records in RAM, so that several can go on from it. What cannot be copied stays as it is."""
        try:
            records = [live.capture(unit) for unit in live.units(live.marks)]
        except NO_COPY as error:
            problems.pass_over(live, error)
            return
        self._room.let_go(live)
        told = Session(live.tenant, live.session, "", live.used_s, live.turns, len(live.tokens), False, tuple(r.key for r in records))
        self._memory.index.note_session(told)
        for record in records:
            self._memory.put(record)
            self._memory.index.label(record.key, Label(live.session, live.tenant, live.used_s, live.rank_s))


def _new_session() -> str:
    return secrets.token_hex(6)
