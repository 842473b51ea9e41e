"""The bank: conversations' states in RAM and on disk, and the one path by which a prompt gets its state back.

A conversation is in RAM once: as a live cache, or as records. Tiers return records, never caches; `materialise` makes caches in the layout
that the caller asks for. Runs on the thread that owns MLX, but for `health`. Knows nothing of models' forward passes or of requests.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from forerun.bank import retain
from forerun.bank.disk import DiskTier
from forerun.bank.live import Live, Unit
from forerun.bank.match import Match, Plan, match
from forerun.bank.memory import MemoryTier
from forerun.bank.tier import Tier
from forerun.bank.writer import Writer
from forerun.errors import BankError, DamagedRecordError
from forerun.state.cache import Cache, Snapshot
from forerun.state.layout import L
from forerun.state.record import Chain, Identity, Record
from forerun.state.records import materialise, relayout
from forerun.state.spec import StateSpec
from forerun.state.store import Arena
from forerun.values import BankHealth, Source

_LOOKS = 3
_WRITE_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Restored(Generic[L]):
    """A cache in the layout that was asked for, holding the first `reused_tokens` of the prompt; source "cold": it is empty.

    reason: why less was reused than is stored, "" if all was. marks: of these tokens, known already. session: whose conversation it is.
    """

    cache: Cache[L]
    reused_tokens: int
    source: Source
    reason: str
    marks: tuple[Snapshot, ...]
    session: str


class Bank:
    """Conversations of one model. `disk` None: nothing survives the process."""

    def __init__(self, spec: StateSpec, identity: Identity, *, disk: DiskTier | None, secret: bytes, ram_limit_bytes: int) -> None:
        self._arena, self._identity, self._secret = Arena(spec), identity, secret
        self._ram_limit_bytes = ram_limit_bytes
        self._memory, self._disk = MemoryTier(), disk
        self._tiers: tuple[Tier, ...] = (self._memory,) if disk is None else (self._memory, disk)
        self._writer = Writer(disk) if disk is not None else None
        self._lives: list[Live] = []

    def restore(self, tokens: Sequence[int], *, tenant: str, session: str | None, layout: L, room_tokens: int) -> Restored[L]:
        """The state of as many of `tokens` as can be had, in `layout`, with room for `room_tokens` more than the prompt. Always a cache."""
        chain, problems = self._chain(tenant), _Problems()
        is_needed, has_waited = self._is_needed(chain, tokens), False
        while True:
            live = self._best_live(tokens, tenant)
            mark = live.mark_within(live.shared(tokens)) if live else None
            due = 0 if has_waited else self._due(is_needed)  # before the look-up: what arrives in between is found, or waited for in vain
            found, plan = self._look_up(chain, tokens, problems)
            if self._writer and due > max(mark.position if mark else 0, plan.position if plan else 0):
                has_waited = True
                self._writer.wait_for(is_needed, _WRITE_WAIT_S)
                continue
            if live and mark and mark.position >= (plan.position if plan else 1):
                if self._may_take(live, mark, session):
                    return self._take(live, mark, tokens, layout, room_tokens, problems)
                self._settle(live)
                continue
            if plan is None:
                return self._cold(session, layout, len(tokens) + room_tokens, _reason(problems, 0, found, live, tokens))
            try:
                cache = self._load(plan, layout, len(tokens) - plan.position + room_tokens)
            except (KeyError, BankError) as error:
                problems.add(error, plan)
                continue
            return self._restored(plan, cache, session, _reason(problems, plan.position, found, live, tokens))

    def cold(self, *, session: str | None, layout: L, room_tokens: int, reason: str) -> Restored[L]:
        """An empty cache for a request that does not use the bank, or may not."""
        return self._cold(session, layout, room_tokens, reason)

    def remember(self, cache: Cache[Any], tokens: Sequence[int], marks: Sequence[Snapshot], *, session: str, tenant: str, new: int) -> None:
        """Keep the conversation: `tokens` are what `cache` holds, marks[-new:] were made in this turn. Consumes the cache."""
        if cache.is_broken or cache.length != len(tokens):
            raise ValueError(f"a cache of {cache.length} tokens{' that is broken' * cache.is_broken} is not the state after {len(tokens)}")
        by_position = {m.position: m for m in marks}
        staying = retain.in_ram(sorted(by_position))
        live = Live(cache, list(tokens), [by_position[p] for p in sorted(staying)], self._chain(tenant), session, tenant)
        if self._disk is not None:
            fresh = sorted({m.position for m in marks[len(marks) - new :]})
            wanted = [by_position[p] for p in sorted(retain.for_disk(fresh))]
            live.pending.extend(self._unwritten(list(live.units(wanted))))
        self._lives.append(live)
        self.trim()

    def capture_one(self) -> bool:
        """Copy one unit of what is pending for the disk. Returns whether there was one. Bounded: call it when nothing more urgent waits."""
        live = next((x for x in self._lives if x.pending), None)
        if live is None or self._writer is None or self._writer.is_full:
            return False
        self._capture(live, self._writer)
        return True

    def trim(self) -> int:
        """Let go of the conversations that were not used for longest, until RAM is within its limit. Returns how many. What goes was
        captured for the disk before, if there is one.
        """
        num_evicted = 0
        while self._held_bytes > self._ram_limit_bytes:
            if self._memory.num_bytes:
                for entry in self._memory.index.oldest(1):
                    self._memory.delete(entry.info.key)
            else:
                self._capture_all(self._lives[0])
                del self._lives[0]
            num_evicted += 1
        return num_evicted

    def flush(self, limit_s: float) -> bool:
        """Write all that is pending, waiting at most `limit_s` seconds for the disk. Returns whether all is safe."""
        for live in self._lives:
            self._capture_all(live)
        return self._writer is None or self._writer.flush(limit_s)

    def close(self) -> None:
        """Stop writing and let go of the tiers. What is still pending is lost: `flush` first."""
        if self._writer is not None:
            self._writer.close()
        self._lives.clear()
        for tier in self._tiers:
            tier.close()

    @property
    def ram_bytes(self) -> int:
        """Bytes of conversations in RAM, those that wait for the disk included."""
        return self._held_bytes + (self._writer.num_bytes if self._writer else 0)

    @property
    def _held_bytes(self) -> int:
        return sum(x.num_bytes for x in list(self._lives)) + self._memory.num_bytes

    def health(self) -> BankHealth:
        """Figures for people. May be called from any thread."""
        waiting = self._writer.num_waiting if self._writer else 0
        disk = self._disk
        return BankHealth(
            sessions=len(self._lives),
            pending_writes=sum(len(x.pending) for x in list(self._lives)) + waiting,
            ram_bytes=self.ram_bytes,
            disk_bytes=disk.num_bytes if disk else 0,
            disk_limit_bytes=disk.limit_bytes if disk else 0,
            quarantined=disk.quarantined if disk else 0,
        )

    @property
    def skipped(self) -> dict[str, int]:
        """Records that could not be written, by reason."""
        return dict(self._writer.skipped) if self._writer else {}

    def _look_up(self, chain: Chain, tokens: Sequence[int], problems: _Problems) -> tuple[Match | None, Plan | None]:
        """What the tiers have of the prompt, and the deepest mark that has not failed yet. A tier that fails is none."""
        try:
            found = match(self._tiers, chain, tokens)
            return found, next((plan for plan in found.plans() if plan.mark.key not in problems.failed_marks), None)
        except BankError as error:
            problems.add(error, None)
            return None, None

    def _is_needed(self, chain: Chain, tokens: Sequence[int]) -> Callable[[Record], bool]:
        """Tells marks of the prompt from other records."""
        nodes = set(chain.nodes(tokens))

        def is_needed(record: Record) -> bool:
            own = tuple(tokens[record.start : record.stop])
            return record.kind == "mark" and record.parent in nodes and record.tokens == own

        return is_needed

    def _due(self, is_needed: Callable[[Record], bool]) -> int:
        """The deepest needed mark that is on its way to the disk. To compute it again would take longer than to wait: a conversation
        larger than RAM leaves it at the end of every turn, and its next turn may begin at once.
        """
        return max((record.stop for record in self._writer.waiting() if is_needed(record)), default=0) if self._writer else 0

    def _chain(self, tenant: str) -> Chain:
        return Chain(self._secret, tenant, self._identity)

    def _best_live(self, tokens: Sequence[int], tenant: str) -> Live | None:
        """The tenant's live conversation whose last mark within the prompt lies deepest."""
        own = [x for x in self._lives if x.tenant == tenant]
        reach = {id(x): (m.position if (m := x.mark_within(x.shared(tokens))) else 0, x.shared(tokens)) for x in own}
        return max(own, key=lambda x: reach[id(x)], default=None)

    def _may_take(self, live: Live, mark: Snapshot, session: str | None) -> bool:
        return session in (None, live.session) and retain.takes_over(live.cache.length, mark.position)

    def _take(self, live: Live, mark: Snapshot, tokens: Sequence[int], layout: L, room_tokens: int, problems: _Problems) -> Restored[L]:
        """Go on in the live cache itself. What is pending is captured first, since the cache is about to change hands."""
        self._capture_all(live)
        self._lives.remove(live)
        reason = _reason(problems, mark.position, None, live, tokens)
        live.cache.cut(mark)
        live.cache.store.reserve(len(tokens) + room_tokens)
        marks = tuple(m for m in live.marks if m.position <= mark.position)
        return Restored(relayout(live.cache, layout), mark.position, "ram", reason, marks, live.session)

    def _load(self, plan: Plan, layout: L, room_tokens: int) -> Cache[L]:
        *segments, mark = plan.load()
        return materialise(self._arena, segments, mark, layout, room_tokens)

    def _restored(self, plan: Plan, cache: Cache[L], session: str | None, reason: str) -> Restored[L]:
        places = (*plan.segments, plan.mark)
        on_disk = [p.key for p in places if p.tier is self._disk]
        if self._writer is not None:
            self._writer.touch([p.key for p in places])
        self._memory.index.touch([p.key for p in places if p.tier is self._memory], time.time())
        name = session or plan.mark.tier.index.session(plan.mark.key) or _new_session()
        return Restored(cache, plan.position, "ssd" if on_disk else "ram", reason, (cache.snapshot(),), name)

    def _cold(self, session: str | None, layout: L, room_tokens: int, reason: str) -> Restored[L]:
        return Restored(materialise(self._arena, [], None, layout, room_tokens), 0, "cold", reason, (), session or _new_session())

    def _settle(self, live: Live) -> None:
        """Turn a live conversation into records in RAM, so that several can go on from it."""
        self._capture_all(live)
        self._lives.remove(live)
        for unit in live.units(live.marks):
            self._memory.put(live.capture(unit))
            self._memory.index.label([unit.key], session=live.session, tenant=live.tenant)

    def _unwritten(self, units: list[Unit]) -> list[Unit]:
        """Those that are not on disk. If the index cannot say, all: writing what is there costs nothing but time."""
        assert self._disk is not None
        try:
            known = self._disk.index.find([u.key for u in units])
        except BankError:
            return units
        return [u for u in units if u.key not in known]

    def _capture_all(self, live: Live) -> None:
        while live.pending and self._writer is not None:
            self._capture(live, self._writer)

    def _capture(self, live: Live, writer: Writer) -> None:
        """One unit, which stays pending until the writer has its bytes. Waits while the writer is full."""
        writer.put(live.capture(live.pending[0]), session=live.session, tenant=live.tenant, used_s=live.used_s)
        live.pending.popleft()


class _Problems:
    """What went wrong while a prompt's state was looked for. failed_marks: not to be tried again for this prompt."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.failed_marks: set[str] = set()
        self._vanished = 0

    def add(self, error: Exception, plan: Plan | None) -> None:
        """Note an error, of this plan if it was one plan's."""
        if isinstance(error, KeyError):  # evicted, or replaced by a longer one, since it was looked up: look again, but not for ever
            self._vanished += 1
            if self._vanished < _LOOKS:
                return
        else:
            self.words.append(f"{'set aside' if isinstance(error, DamagedRecordError) else 'the bank failed'}: {error}")
        if plan is not None:
            self.failed_marks.add(plan.mark.key)


def _reason(problems: _Problems, reused: int, found: Match | None, live: Live | None, tokens: Sequence[int]) -> str:
    shared = max(found.shared if found else 0, live.shared(tokens) if live else 0)
    parts = list(problems.words)
    if shared == 0 and not parts:
        parts.append("no stored conversation begins like this prompt")
    elif reused < shared:
        where = f"the last mark before that is at {reused}" if reused else "no mark lies before that"
        parts.append(f"the prompt and the stored conversation are the same for {shared} tokens; {where}")
    return "; ".join(parts)


def _new_session() -> str:
    return secrets.token_hex(6)
