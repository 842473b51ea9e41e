"""The bank: the state of conversations in RAM and on disk. Assembles the parts, and stores what a finished turn leaves.

A conversation in RAM is a live cache, finished or running; others fork it. Tiers return records, never caches. Runs on the thread that owns
MLX, except for `stats`. Knows nothing of models' forward passes or of requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.bank import policy
from forerun.bank.live import (
    NOTHING_UNSAVED,
    LiveConversation,
    LiveConversations,
    UnsavedState,
)
from forerun.bank.match import PrefixChain, match, recall
from forerun.bank.miss_reason import MissExplainer, MissReason
from forerun.bank.prefill_saver import PrefillSaver
from forerun.bank.protection import ProtectedPrompt, Protections
from forerun.bank.ram import Ram
from forerun.bank.response_store import ResponseStore
from forerun.bank.restore import RestoreContext, RestoredState, RestoreSources, cold, continued, is_write_due, restore
from forerun.bank.running_turns import RunningTurn, RunningTurns
from forerun.bank.saver import DiskSaver
from forerun.bank.session_store import SessionStore
from forerun.bank.stats import BankStats
from forerun.bank.tier.base import Tier
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.history import Memo
from forerun.bank.tier.index import Index
from forerun.errors import BankError
from forerun.state.cache import Cache, Snapshot
from forerun.state.layout import Contiguous, L
from forerun.state.record import SEGMENT_TOKENS, Identity, PrefixHasher
from forerun.state.spec import StateSpec
from forerun.state.store import Arena

log = logging.getLogger(__name__)
RESPONSE_FRAC = 0.1  # of the disk quota, for stored responses at most
RESPONSE_RAM_BYTES = 64 << 20  # for them without a disk


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """A turn to be stored. turns: of the conversation, this one included. message_end: where the prompt's generation suffix begins.

    num_new_snapshots: how many snapshots at the end are new. memo: needed after a restart, or None. unsaved: see `RestoredState`.
    head: tokens of the first message, 0 if unknown. title, client: of the conversation, see `Session`; agent: see `Job`.
    used_s, running: as of `RestoredState`.
    """

    session: str
    tenant: str
    turns: int
    message_end: int
    num_new_snapshots: int
    memo: Memo | None = None
    unsaved: UnsavedState = NOTHING_UNSAVED
    head: int = 0
    title: str = ""
    client: str = ""
    agent: str = ""
    used_s: float = field(default_factory=time.time)
    running: RunningTurn = field(default_factory=RunningTurn)


class Bank:
    """The conversations of one model. sessions: list, name, pin, remove. responses: stored ones. stats: figures. disk None:
    nothing survives the process.
    """

    def __init__(self, spec: StateSpec, identity: Identity, *, disk: DiskTier | None, secret: bytes, ram_limit_bytes: int) -> None:
        self._identity, self._secret = identity, secret
        self._ram_limit_bytes = ram_limit_bytes
        self._losses, self._disk = Index.in_memory(), disk
        tiers: tuple[Tier, ...] = () if disk is None else (disk,)
        self._live, self._running = LiveConversations(), LiveConversations()
        self._protections = Protections()
        self._saver = DiskSaver(disk, spec, self._live, self._protections) if disk is not None else None
        self._ram = Ram(self._live, self._losses, self._saver, self._protections)
        explainer = MissExplainer(tiers, self._losses, (self._live, self._running), secret, identity)
        self._sources = RestoreSources(Arena(spec), self._ram, self._running, tiers, self._saver, explainer)
        self.stats = BankStats(self._ram, self._saver)
        self._turns = RunningTurns()
        self.responses = self._response_store(disk)
        self.sessions = SessionStore(
            self._ram, self._losses, self._saver, self._hasher, self._turns, self._running, self._resolve, self.responses
        )

    def restore(
        self, tokens: Sequence[int], *, tenant: str, session: str | None, layout: L, headroom_tokens: int, agent: str = ""
    ) -> RestoredState[L]:
        """The state of as many of `tokens` as possible, or none, with capacity for all of them and `headroom_tokens` more. agent: which
        asks, "" if unknown.
        """
        hasher = self._hasher(tenant)
        context = RestoreContext(self._sources, PrefixChain.of(hasher, tokens), hasher, session, layout, headroom_tokens, agent)
        restored = restore(context)
        return replace(restored, running=self._turns.begin(tenant, restored.session))

    def is_write_due(self, tokens: Sequence[int], *, tenant: str, session: str | None) -> bool:
        """Whether `restore` could use more of these tokens once what is queued for the disk is written."""
        return self._saver is not None and self._saver.writer.num_waiting > 0 and is_write_due(self._context(tokens, tenant, session))

    def wait(self, tokens: tuple[int, ...], *, tenant: str, session: str | None) -> RunningTurn:
        """A turn that waits for `restore`: if the conversation that it would continue is removed meanwhile, it is not to be stored. May be
        called from any thread.
        """
        return self._turns.begin(tenant, session or "", tokens)

    def protect(self, tokens: Sequence[int], *, tenant: str, session: str | None) -> ProtectedPrompt:
        """Evict nothing from RAM or disk that `restore` would use for these tokens, also if it is stored later. Until `unprotect`. May be
        called from any thread.
        """
        hasher = self._hasher(tenant)
        prompt = ProtectedPrompt(PrefixChain.of(hasher, tokens), hasher, session)
        self._protections.add(prompt)
        return prompt

    def unprotect(self, prompt: ProtectedPrompt) -> None:
        """End a protection. May be called again, and from any thread."""
        self._protections.remove(prompt)

    def recall(self, tokens: tuple[int, ...], *, tenant: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The longest prefix that `tokens` share with a conversation on disk, and how that one continues. May be called from any thread.

        Nothing if the index fails: `restore`, which queries it next, reports that.
        """
        try:
            return recall(self._disk, self._hasher(tenant), tokens) if self._disk else ((), ())
        except BankError:
            return (), ()

    def memos(self, names: Collection[str], *, tenant: str) -> list[bytes]:
        """Data of the tenant's memos of these names on disk. May be called from any thread; nothing if the index fails."""
        try:
            return self._disk.index.memos(self._hasher(tenant).root, names) if self._disk and names else []
        except BankError:
            return []

    def bypass(self, reason: str, *, prompt_tokens: int, session: str | None, layout: L, headroom_tokens: int) -> RestoredState[L]:
        """An empty cache for a request that does not use the bank, with capacity for the prompt and `headroom_tokens` more."""
        return cold(self._sources.arena, session, layout, prompt_tokens + headroom_tokens, MissReason("bypass", reason, 0, ()))

    def remember(self, cache: Cache[Any], tokens: Sequence[int], snapshots: Sequence[Snapshot], turn: FinishedTurn) -> None:
        """Store the conversation, unless it was removed since `restore`. cache: the state after `tokens`, consumed. snapshots: within them,
        in order. Raises ValueError.
        """
        if turn.running.is_removed:
            log.info("a turn of a conversation that was removed meanwhile is not stored")
            return
        if cache.is_broken or cache.length != len(tokens):
            raise ValueError(f"a cache of {cache.length} tokens{' that is broken' * cache.is_broken} is not the state after {len(tokens)}")
        by_position = {s.position: s for s in snapshots}
        in_ram = [by_position[p] for p in sorted(policy.in_ram(sorted(by_position), turn.head))]
        memos = (*turn.unsaved.memos, *filter(None, [turn.memo]))
        live = LiveConversation(cache, list(tokens), in_ram, self._hasher(turn.tenant), turn.session, turn.turns, memos, head=turn.head)
        live.title, live.client, live.agent = turn.title, turn.client, turn.agent
        live.used_s, live.message_end = turn.used_s, turn.message_end
        if self._saver is not None:
            new = sorted({s.position for s in snapshots[len(snapshots) - turn.num_new_snapshots :]})
            wanted = [by_position[p] for p in sorted(policy.for_disk(new, turn.message_end))]
            self._saver.begin(live, wanted, turn.unsaved)
        self._live.add(live)
        self._turns.end(turn.running)
        self.trim()

    def run(self, restored: RestoredState[Any], tokens: Sequence[int], snapshots: list[Snapshot], *, tenant: str) -> LiveConversation:
        """Let others fork the conversation of the prompt `tokens` while a request uses `restored.cache`: at `snapshots`, in order of
        position, to which the caller appends while it prefills. Until `end_run`, or until it is removed; a new cache after a change of
        layout goes into `cache`.
        """
        hasher = self._hasher(tenant)
        live = LiveConversation(restored.cache, list(tokens), snapshots, hasher, restored.session, restored.turns, (), is_running=True)
        if not restored.running.is_removed:
            self._running.add(live)
        return live

    def end_run(self, live: LiveConversation) -> None:
        """Let nobody fork it any more, before its cache is stored or dropped. May be called again."""
        if live in self._running:
            self._running.remove(live)

    def prefill_saver(self, restored: RestoredState[Any], tokens: Sequence[int], *, tenant: str, message_end: int) -> PrefillSaver | None:
        """What saves the prompt `tokens` while `restored.cache` is prefilled with it; None without a disk."""
        if self._saver is None:
            return None
        hasher, snapshots = self._hasher(tenant), list(restored.snapshots)
        live = LiveConversation(restored.cache, list(tokens), snapshots, hasher, restored.session, restored.turns + 1, ())
        live.used_s, live.message_end = restored.used_s, message_end
        return PrefillSaver(self._saver, live, message_end, restored.running)

    def durable_tokens(self, tokens: Sequence[int], *, tenant: str) -> int:
        """How many of the first `tokens` could be restored after a crash now; 0 if the index fails."""
        hasher = self._hasher(tenant)
        try:
            found = match([self._disk] if self._disk else [], hasher, PrefixChain.of(hasher, tokens))
            return next((plan.position for plan in found.plans()), 0)
        except BankError:
            return 0

    def note_unstored(self, tokens: tuple[int, ...], tenant: str, reason: str) -> None:
        """Note why the state after these tokens is not stored, as the reason of a later miss."""
        hasher = self._hasher(tenant)
        node, start = hasher.nodes(tokens)[-1], len(tokens) - len(tokens) % SEGMENT_TOKENS
        try:
            self._losses.note_lost([hasher.info("snapshot", node, start, tokens[start:])], "not stored", reason, time.time())
        except BankError as error:  # only the reason of a later miss is lost
            log.warning("loss of a snapshot not noted: %s", error)

    def capture_one(self) -> bool:
        """Capture one pending unit for the disk, in bounded time. Returns whether there was one. Call it when nothing more urgent waits."""
        live = next((x for x in self._live if x.pending), None)
        if live is None or self._saver is None or self._saver.writer.is_full:
            return False
        self._saver.capture(live)
        return True

    def trim(self) -> int:
        """Evict until RAM is within its limit, capturing for the disk first. Returns the number of conversations."""
        return self._shrink(self._ram_limit_bytes, ())

    def resumable(self, tokens: Sequence[int], *, tenant: str, session: str | None, agent: str = "") -> LiveConversation | None:
        """The live conversation whose cache `restore` would take over for these tokens, unless records reach further."""
        reach = self._live.best(PrefixChain.of(self._hasher(tenant), tokens), session, ())
        return reach.live if reach and reach.can_be_taken_over(session, agent) else None

    def free(self, num_bytes: int, spared: Collection[LiveConversation]) -> int:
        """As `trim`, until `num_bytes` are freed or only `spared` and protected conversations are left."""
        return self._shrink(self._ram.held_bytes - num_bytes, spared)

    def release_free_pages(self) -> None:
        """Give back the memory of the pages that no cache uses, as far as they are the last ones."""
        self._sources.arena.shrink()

    def _resolve(self, tenant: str) -> None:
        """Name the conversations that waiting turns of the tenant would continue now."""
        for turn in self._turns.nameless(tenant):
            turn.session = continued(self._context(turn.tokens, tenant, None))

    def _context(self, tokens: Sequence[int], tenant: str, session: str | None) -> RestoreContext[Contiguous]:
        """Of a look-up alone."""
        hasher = self._hasher(tenant)
        return RestoreContext(self._sources, PrefixChain.of(hasher, tokens), hasher, session, Contiguous(), 0)

    def _shrink(self, limit_bytes: int, spared: Collection[LiveConversation]) -> int:
        num_evicted = self._ram.shrink(limit_bytes, spared)
        if num_evicted:
            self.release_free_pages()
        return num_evicted

    def flush(self, limit_s: float) -> bool:
        """Write all that is pending, waiting at most `limit_s` seconds for the disk. Returns whether all is on disk."""
        if self._saver is None:
            return True
        for live in self._live:
            self._saver.capture_all(live)
        return self._saver.writer.flush(limit_s)

    def close(self) -> None:
        """Stop writing and close the tiers. What is still pending is lost: `flush` first."""
        if self._saver is not None:
            self._saver.writer.close()
        self._live.clear()
        self._running.clear()
        self._losses.close()
        if self._disk is not None:
            self._disk.close()

    @property
    def paged_blocks(self) -> tuple[int, int]:
        """(used, free) pages of paged caches. May be called from any thread."""
        return self._sources.arena.num_blocks

    @property
    def off_reason(self) -> str:
        """Why this bank stores nothing, "" if it does."""
        return "" if self._disk or self._ram_limit_bytes else "no conversation is stored: bank_ram_bytes and bank_disk_bytes are 0"

    def _response_store(self, disk: DiskTier | None) -> ResponseStore:
        """On disk, next to the records, or in RAM."""
        if disk is None or self._saver is None:
            return ResponseStore(self._losses, RESPONSE_RAM_BYTES, lambda num_bytes: None)
        return ResponseStore(disk.index, int(disk.limit_bytes * RESPONSE_FRAC), self._saver.evicting.reserve)

    def _hasher(self, tenant: str) -> PrefixHasher:
        return PrefixHasher(self._secret, tenant, self._identity)
