"""Serves one request on the thread that owns MLX: restore, prefill, relayout, decode, store. Knows no queue and no socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx

from forerun.bank import policy
from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.live import LiveConversation
from forerun.bank.prefill_saver import PrefillSaver
from forerun.bank.restore import RestoredState
from forerun.bank.tier.history import Memo
from forerun.decode.compiled import NO_COMPILER, StepTable
from forerun.decode.depth import WARNING, DepthPolicy
from forerun.decode.generate import Generation
from forerun.decode.prefill import CHUNK_TOKENS, prefill
from forerun.decode.scores import prompt_scores
from forerun.engine import miss, prompt_encoding
from forerun.engine.admission import free_memory_for
from forerun.engine.answer_logprobs import AnswerLogprobs, token_logprob
from forerun.engine.cost import Cost, DecodeStats, LayoutPair, Timing, report
from forerun.engine.request import Request
from forerun.errors import NumericsError
from forerun.models.base import Family
from forerun.state.cache import Cache, Snapshot
from forerun.state.conversion import relayout_as_chosen
from forerun.state.layout import Contiguous, Layout, Limits, layout_for
from forerun.text.answer import Answer
from forerun.text.answer_parser import AnswerParser
from forerun.text.message import AssistantMessage
from forerun.text.prompt import Prompter, SampledAnswer
from forerun.text.title import TITLE_TOKENS, title_of
from forerun.text.tokenizer import Tokenizer
from forerun.values import Chat, Done, Finish, Piece, PrefillProgress, PromptLogprobs, Usage

HEADROOM_TOKENS = 512  # of a cache, for the answer; it grows beyond that


class RequestCancelled(Exception):
    """The request was cancelled; its computed state is stored, unless it is an import. cost: None if it was cancelled in prefill."""

    def __init__(self, cost: Cost | None) -> None:
        super().__init__("the request was cancelled")
        self.cost = cost


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model with what serving it takes, made on the thread that owns MLX. memory_bytes: the device's. notes: of loading."""

    steps: StepTable
    bank: Bank
    prompter: Prompter
    policy: DepthPolicy
    limits: Limits
    memory_bytes: int
    notes: tuple[str, ...]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prompter.tokenizer

    @property
    def family(self) -> Family:
        return self.steps.family

    @property
    def degraded_reasons(self) -> tuple[str, ...]:
        """Why /health is degraded, as messages; empty if it is not."""
        reasons = [f"{count} records could not be written ({reason})" for reason, count in self.bank.stats.skipped.items()]
        if self.bank.off_reason:
            reasons.append(self.bank.off_reason)
        if self.policy.acceptance.is_failing:
            reasons.append(WARNING)
        if self.steps.eager_reason == NO_COMPILER:
            reasons.append("steps run eager: MLX compiles them with g++; install it, or set --eager")
        return tuple(reasons)


@dataclass(slots=True)
class Turn:
    """Serves one request. Call `run` once. between: called between two chunks of prefill and between two rounds."""

    model: Model
    request: Request
    between: Callable[[], object]
    timing: Timing = field(default_factory=Timing)
    _store: Callable[[], None] = field(default=lambda: None)

    def run(self) -> Done:
        """Post the request's events; return the last one. Raises RequestCancelled, OutOfMemoryError, NumericsError, what MLX raises."""
        context_tokens = self.request.prompt_tokens + min(self.request.max_tokens, HEADROOM_TOKENS)
        free_memory_for(self.model.bank, self.model.family.spec, context_tokens, self.model.memory_bytes, self._own_live)
        requested = layout_for("prefill", self.request.prompt_tokens, self.model.limits)
        restored = self._restore(requested)
        snapshots = list(restored.snapshots)
        prefilled = LayoutPair(requested, restored.cache.store.layout)
        cache = self._prefill(restored, snapshots)
        decode_layout = layout_for("decode", cache.length + min(self.request.max_tokens, HEADROOM_TOKENS), self.model.limits)
        return self._answer(relayout_as_chosen(cache, decode_layout), decode_layout, restored, prefilled, snapshots)

    def store(self) -> None:
        """Store the conversation in the bank, after the last event was posted: nobody waits for it."""
        self._store()

    def _own_live(self) -> LiveConversation | None:
        job, tokens = self.request.job, self.request.prompt.tokens
        return None if self._bypass_reason() else self.model.bank.resumable(tokens, tenant=job.tenant, session=job.session)

    def _restore(self, layout: Contiguous) -> RestoredState[Contiguous]:
        request, bank, tokens = self.request, self.model.bank, self.request.prompt.tokens
        headroom_tokens, session = min(request.max_tokens, HEADROOM_TOKENS), request.job.session
        if reason := self._bypass_reason():
            restored = bank.bypass(reason, prompt_tokens=len(tokens), session=session, layout=layout, headroom_tokens=headroom_tokens)
        else:
            restored = bank.restore(tokens, tenant=request.job.tenant, session=session, layout=layout, headroom_tokens=headroom_tokens)
        self.timing.restored_s = time.monotonic()
        request.running = restored.running
        return restored.apart() if session is None and self._begins_another(restored) else restored

    def _begins_another(self, restored: RestoredState[Contiguous]) -> bool:
        """Whether it is a conversation's first question and diverges from the stored one within it. Conversations of one agent share a long
        system prompt, which does not make them one conversation.
        """
        reason, chat = restored.miss_reason, self.request.job.prompt
        is_other = bool(reason.stored) and reason.shared_tokens < self.request.prompt.message_end
        return is_other and isinstance(chat, Chat) and chat.is_opening

    def _bypass_reason(self) -> str:
        """Why the bank is not used, "" if it is."""
        if self.request.job.uses_bank:
            return self.model.bank.off_reason
        return "bypass" if self.request.job.bank == "bypass" else "logprobs of the prompt are requested: all of it is computed"

    def _prefill(self, restored: RestoredState[Contiguous], snapshots: list[Snapshot]) -> Cache[Contiguous]:
        cache, prompt = restored.cache, self.request.prompt
        reuse = policy.Reuse(restored.reused_tokens, restored.miss_reason.shared_tokens, self.model.family.spec.snapshot_tokens)
        stop_ids = self.model.tokenizer.stop_ids
        snapshot_positions = policy.snapshot_positions(prompt.tokens, prompt.message_end, stop_ids, reuse, prompt.borders)
        archived = self.request.archived
        if archived:
            snapshot_positions |= set(archived.snapshots)
        saver = self._prefill_saver(restored)
        self._post_prefill_progress(restored)
        for new in prefill(self.model.family, cache, prompt.tokens, snapshot_positions, self._post_prompt_logprobs):
            snapshots += new
            if saver:
                saver.save(new)
            self._post_prefill_progress(restored)
            if cache.length == len(prompt.tokens):
                break
            self.between()
            if self.request.is_cancelled:
                if not archived:
                    self._store = partial(self._remember, cache, list(prompt.tokens[: cache.length]), snapshots, restored, None)
                raise RequestCancelled(None)
        self.timing.prefilled_s = time.monotonic()
        return cache

    def _prefill_saver(self, restored: RestoredState[Contiguous]) -> PrefillSaver | None:
        """None where less than a chunk would be lost, or nothing is stored."""
        prompt, tenant = self.request.prompt, self.request.job.tenant
        if self._bypass_reason() or self.request.archived or len(prompt.tokens) - restored.reused_tokens < CHUNK_TOKENS:
            return None
        return self.model.bank.prefill_saver(restored, prompt.tokens, tenant=tenant, message_end=prompt.message_end)

    def _answer(
        self, cache: Cache[Any], requested: Layout, restored: RestoredState[Contiguous], prefilled: LayoutPair, snapshots: list[Snapshot]
    ) -> Done:
        request, before = self.request, self.model.steps.counts()
        generation = self._generation(cache)
        logprobs = AnswerLogprobs(generation, self.model.tokenizer)
        parts = request.prompt.answer_parser(request.job.id, logprobs.within)
        message = self._post_answer(generation, parts)
        if not self._bypass_reason():
            _check_finite(cache)
        decode_stats = DecodeStats(
            LayoutPair(requested, cache.store.layout), cache.store.num_blocks, self.model.steps.counts() - before, generation.draft_stats
        )
        answered = SampledAnswer(tuple(generation.tokens[: generation.num_shown]), request.answer_text, message)
        memo = self._learn(answered, restored.session)
        self._store = lambda: self._remember(cache, generation.store(), snapshots, restored, memo)
        reasoning_tokens = self.model.tokenizer.num_within(generation.tokens, parts.reasoning_chars)
        usage = Usage(request.prompt_tokens, restored.reused_tokens, generation.num_sampled, reasoning_tokens)
        request.describe_miss = partial(miss.describe, restored.miss_reason, request.prompt, self.model.tokenizer)
        cost = Cost(
            usage, report(self.model.family, request, restored, prefilled, decode_stats, usage, self._durable_tokens(), self.timing)
        )
        if generation.finish is None:
            raise RequestCancelled(cost)
        finish: Finish = "calls" if generation.finish == "stop" and parts.has_calls else generation.finish
        return Done(finish, *cost, generation.answer.stop_string, logprobs.rest())

    def _post_answer(self, generation: Generation, parts: AnswerParser) -> Mapping[str, Any]:
        """Post the answer as it is generated, to its end or until the request is cancelled. Returns it as a message."""
        message = AssistantMessage()
        for text in generation:
            self.timing.last_s = time.monotonic()
            self.timing.first_s = self.timing.first_s or self.timing.last_s
            self.request.answer_text += text
            self._post(parts.push(text), message)
            if self.request.is_cancelled:
                break
            if generation.finish is None:
                self.between()
        self.timing.first_s = self.timing.first_s or time.monotonic()
        self._post(parts.flush(is_cut=generation.finish != "stop" or generation.answer.is_stopped), message)
        return message.value()

    def _post_prompt_logprobs(self, start: int, hidden: mx.array) -> None:
        """Post logprobs of the prompt tokens after the rows of hidden [rows, dim], the first at `start`, if requested."""
        requested, tokens = self.request.job.logprobs, self.request.prompt.tokens
        if requested is None or not requested.of_prompt:
            return
        following = tokens[start + 1 : start + 1 + hidden.shape[0]]
        scores = prompt_scores(self.model.family, hidden, following, requested.num_top)
        first = [token_logprob(self.model.tokenizer, tokens[0], None)] if start == 0 else []
        scored = [token_logprob(self.model.tokenizer, token, score) for token, score in zip(following, scores, strict=True)]
        self.request.post(PromptLogprobs((*first, *scored)))

    def _generation(self, cache: Cache[Any]) -> Generation:
        requested = self.request.job.logprobs
        return Generation(
            self.model.steps,
            cache,
            self.request.prompt.tokens,
            self.request.job.sampling,
            Answer(self.model.tokenizer, self.request.job.stop, self.request.prompt.reasoning_end),
            max_tokens=self.request.max_tokens,
            stop_ids=self.model.tokenizer.stop_ids,
            policy=self.model.policy,
            num_top=requested.num_top if requested else None,
        )

    def _durable_tokens(self) -> int:
        prompt, tenant = self.request.prompt, self.request.job.tenant
        return 0 if self._bypass_reason() else self.model.bank.durable_tokens(prompt.tokens, tenant=tenant)

    def _learn(self, answered: SampledAnswer, session: str) -> Memo | None:
        """Remember how the answer was sampled, before the client can send it back."""
        if self._bypass_reason() or self.request.running.is_removed:
            return None
        return prompt_encoding.learn(self.model.prompter, self.request.job, self.request.prompt, answered, session)

    def _remember(
        self,
        cache: Cache[Any],
        tokens: list[int],
        snapshots: list[Snapshot],
        restored: RestoredState[Contiguous],
        memo: Memo | None,
    ) -> None:
        """Store the conversation. Raises NumericsError, BankError, what MLX raises."""
        if self._bypass_reason():
            return
        _check_finite(cache)
        snapshots = [*snapshots, cache.snapshot()]
        job, message_end, num_new = self.request.job, self.request.prompt.message_end, len(snapshots) - len(restored.snapshots)
        turns = self.request.archived.turns if self.request.archived else restored.turns + 1
        head = policy.first_message_end(tokens, message_end, self.model.tokenizer.stop_ids)
        names = self._title(), job.client
        turn = FinishedTurn(
            restored.session,
            job.tenant,
            turns,
            message_end,
            num_new,
            memo,
            restored.unsaved,
            head,
            *names,
            restored.used_s,
            restored.running,
        )
        self.model.bank.remember(cache, tokens, snapshots, turn)

    def _title(self) -> str:
        return title_of(self.request.job.prompt, lambda: self.model.tokenizer.decode(self.request.prompt.tokens[:TITLE_TOKENS]))

    def _post(self, pieces: Iterable[Piece], message: AssistantMessage) -> None:
        for piece in pieces:
            message.take(piece)
            self.request.post(piece)

    def _post_prefill_progress(self, restored: RestoredState[Contiguous]) -> None:
        done, total, reused = restored.cache.length, self.request.prompt_tokens, restored.reused_tokens
        pace_s = (time.monotonic() - self.timing.restored_s) / (done - reused) if done > reused else None
        self.request.post(PrefillProgress(done, total, reused, None if pace_s is None else round(pace_s * (total - done), 1)))


def _check_finite(cache: Cache[Any]) -> None:
    """Raises NumericsError: the state must not be stored."""
    if not bool(mx.all(mx.isfinite(cache.hidden))):
        raise NumericsError("the model's state contains non-finite numbers", hint="the weights may be damaged")
