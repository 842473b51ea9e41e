"""One running request on the thread that owns MLX: restore, prefill, relayout, decode, store. Knows no queue, socket or other request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import mlx.core as mx

from forerun.bank import policy
from forerun.bank.bank import FinishedTurn
from forerun.bank.live import LiveConversation
from forerun.bank.prefill_saver import PrefillSaver
from forerun.bank.restore import RestoredState
from forerun.bank.tier.history import Memo
from forerun.decode.generate import Generation
from forerun.decode.loops import LoopDetector
from forerun.decode.prefill import CHUNK_TOKENS, prefill
from forerun.decode.scores import prompt_scores
from forerun.engine import miss, prompt_encoding
from forerun.engine.admission import free_memory_for, usable_bytes
from forerun.engine.answer_logprobs import AnswerLogprobs, token_logprob
from forerun.engine.cost import Cost, DecodeStats, LayoutPair, Passes, Timing, report
from forerun.engine.model import Model
from forerun.engine.request import Request
from forerun.errors import NumericsError
from forerun.state.cache import Cache
from forerun.state.conversion import relayout_as_chosen
from forerun.state.layout import Contiguous, layout_for
from forerun.text.answer import Answer
from forerun.text.message import AssistantMessage
from forerun.text.prompt import SampledAnswer
from forerun.text.title import TITLE_TOKENS, title_of
from forerun.values import Chat, Done, Finish, Piece, PrefillProgress, PromptLogprobs, Usage

HEADROOM_TOKENS = 512  # of a cache, for the answer; it grows beyond that


class Phase(Enum):
    """What a running sequence needs next."""

    PREFILL = "prefill"
    DECODE = "decode"
    END = "end"


class RunningSequence:
    """One running request: its cache, answer and timings. It starts restored; the batch then drives it by its phase.

    `prefill` computes one piece of the prompt, `posted` takes a round of its `generation`, `done` is the last event, `store` what remains.
    is_pausing: whether others decode, so that a chunk of prefill is computed in pieces. others_s: time that passed for others alone.
    is_suspect: its next round is decoded alone, since a pass of several failed.
    Raises OutOfMemoryError and what MLX raises, as its methods do.
    """

    def __init__(self, model: Model, request: Request, is_pausing: Callable[[], bool], reserved_bytes: int) -> None:
        self.model, self.request, self.is_pausing = model, request, is_pausing
        self.timing, self.passes, self.others_s = Timing(), Passes(), 0.0
        self.num_recoveries, self.is_suspect = 0, False
        free_memory_for(
            model.bank, model.family.spec, self.context_tokens, usable_bytes(model.memory_bytes) - reserved_bytes, self._own_live
        )
        layout = layout_for("prefill", request.prompt_tokens, model.limits)
        self.restored = self._restore(request.prompt.tokens, layout)
        self.restored.running.is_removed |= request.running.is_removed  # while it waited
        request.running = self.restored.running
        self.snapshots = list(self.restored.snapshots)
        self.cache: Cache[Any] = self.restored.cache
        mx.eval(self.cache.arrays())  # what is not allocated yet would be promised to the next request too
        self.prefilled = LayoutPair(layout, self.cache.store.layout)
        self.snapshot_positions = self._snapshot_positions()
        self.generation: Generation | None = None
        self._memo: Memo | None = None
        self._pieces: Iterator[None] | None = self._prefill()
        self._shared = self._share()

    @property
    def context_tokens(self) -> int:
        """How long it is expected to become, in tokens."""
        return self.request.prompt_tokens + min(self.request.max_tokens, HEADROOM_TOKENS)

    @property
    def phase(self) -> Phase:
        if self._pieces is not None:
            return Phase.PREFILL
        return Phase.DECODE if self.generation and self.generation.finish is None else Phase.END

    @property
    def num_bytes(self) -> int:
        """Memory of its cache and snapshots."""
        return self.cache.num_bytes + sum(s.num_bytes for s in self.snapshots)

    @property
    def remaining_tokens(self) -> int:
        """Of the prompt, still to be computed."""
        return self.request.prompt_tokens - self.cache.length

    @property
    def is_cancelled(self) -> bool:
        """Whether it is to end now: cancelled, and not in the middle of a chunk."""
        return self.request.is_cancelled and not self.cache.is_lent

    def prefill(self) -> None:
        """The next piece of the prompt; after the last one the first token is drawn and posted."""
        assert self._pieces is not None
        if next(self._pieces, self) is self:
            self._pieces = None
            self._decode_from_here()

    def posted(self) -> None:
        """Post the text of the last round."""
        assert self.generation is not None
        self.timing.last_s = time.monotonic()
        self.timing.first_s = self.timing.first_s or self.timing.last_s
        text = self.generation.piece()
        self.request.answer_text += text
        self._post(self._parser.push(text))

    def recover(self) -> None:
        """Compute the state again that was lost with a failed pass of several: restored, and prefilled up to the last token."""
        assert self.generation is not None
        self.num_recoveries += 1
        tokens = [*self.request.prompt.tokens, *self.generation.sampled[:-1]]
        layout = layout_for("prefill", len(tokens), self.model.limits)
        self.cache = self._restore(tuple(tokens), layout).cache
        if self._shared:
            self._shared.cache = self.cache
        self._pieces = self._prefill_again(tokens)

    def leave(self) -> None:
        """Nobody may fork it any more: it ends."""
        if self._shared:
            self.model.bank.end_run(self._shared)

    def _share(self) -> LiveConversation | None:
        """Let others fork the prompt's state while this runs; None if it does not use the bank."""
        if self._bypass_reason():
            return None
        tokens, tenant = self.request.prompt.tokens, self.request.job.tenant
        return self.model.bank.run(self.restored, tokens, self.snapshots, tenant=tenant)

    def _own_live(self) -> LiveConversation | None:
        job, tokens = self.request.job, self.request.prompt.tokens
        return None if self._bypass_reason() else self.model.bank.resumable(tokens, tenant=job.tenant, session=job.session, agent=job.agent)

    def _restore(self, tokens: tuple[int, ...], layout: Contiguous) -> RestoredState[Contiguous]:
        request, bank = self.request, self.model.bank
        headroom_tokens, session = min(request.max_tokens, HEADROOM_TOKENS), request.job.session
        if reason := self._bypass_reason():
            restored = bank.bypass(reason, prompt_tokens=len(tokens), session=session, layout=layout, headroom_tokens=headroom_tokens)
        else:
            restored = bank.restore(
                tokens,
                tenant=request.job.tenant,
                session=session,
                layout=layout,
                headroom_tokens=headroom_tokens,
                agent=request.job.agent,
            )
        self.timing.restored_s = self.timing.restored_s or time.monotonic()
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

    def _snapshot_positions(self) -> set[int]:
        """Where the prefill makes snapshots; more may be added while it is before them."""
        prompt, restored = self.request.prompt, self.restored
        reuse = policy.Reuse(restored.reused_tokens, restored.miss_reason.shared_tokens, self.model.family.spec.snapshot_tokens)
        positions = policy.snapshot_positions(prompt.tokens, prompt.message_end, self.model.tokenizer.stop_ids, reuse, prompt.borders)
        return {*positions, *(self.request.archived.snapshots if self.request.archived else ())}

    def _prefill(self) -> Iterator[None]:
        """Prefill the prompt, piece by piece."""
        saver, tokens = self._prefill_saver(self.restored), self.request.prompt.tokens
        self._post_prefill_progress()
        for new in prefill(self.model.family, self.cache, tokens, self.snapshot_positions, self._post_prompt_logprobs, self.is_pausing):
            if not self.cache.is_lent:
                self.snapshots += new
                if saver:
                    saver.save(new)
                self._post_prefill_progress()
            if self.remaining_tokens:
                yield
        self.timing.prefilled_s = time.monotonic()

    def _prefill_again(self, tokens: list[int]) -> Iterator[None]:
        assert self.generation is not None
        for new in prefill(self.model.family, self.cache, tokens, self.generation.resumable_at, is_pausing=self.is_pausing):
            self.generation.found(new)
            if self.cache.length < len(tokens):
                yield

    def _decode_from_here(self) -> None:
        """Change to the decoding layout; begin the answer, or resume it."""
        self._layout = layout_for("decode", self.cache.length + min(self.request.max_tokens, HEADROOM_TOKENS), self.model.limits)
        self.cache = relayout_as_chosen(self.cache, self._layout)
        if self._shared:
            self._shared.cache = self.cache
        if self.generation:
            self.generation.resume(self.cache)
            return
        self.generation = self._generation()
        self._logprobs = AnswerLogprobs(self.generation, self.model.tokenizer)
        self._parser = self.request.prompt.answer_parser(self.request.job.id, self._logprobs.within)
        self._message = AssistantMessage()
        self.generation.begin()
        if self.generation.sampled:
            self.posted()

    def _prefill_saver(self, restored: RestoredState[Contiguous]) -> PrefillSaver | None:
        """None where less than a chunk would be lost, or nothing is stored."""
        prompt, tenant = self.request.prompt, self.request.job.tenant
        if self._bypass_reason() or self.request.archived or len(prompt.tokens) - restored.reused_tokens < CHUNK_TOKENS:
            return None
        return self.model.bank.prefill_saver(restored, prompt.tokens, tenant=tenant, message_end=prompt.message_end)

    def done(self) -> Done:
        """The last event: flushes the answer. Raises NumericsError."""
        generation, cost = self.generation, self.cost()
        assert generation is not None
        assert generation.finish is not None
        assert cost is not None
        finish: Finish = "calls" if generation.finish == "stop" and self._parser.has_calls else generation.finish
        return Done(finish, *cost, generation.answer.stop_string, self._logprobs.rest())

    def cost(self) -> Cost | None:
        """Usage and report of the answer as far as it is, which ends here. None before it began. Raises NumericsError."""
        generation, request = self.generation, self.request
        if generation is None:
            return None
        self.timing.first_s = self.timing.first_s or time.monotonic()
        self._post(self._parser.flush(is_cut=generation.finish != "stop" or generation.answer.is_stopped))
        if not self._bypass_reason():
            _check_finite(self.cache)
        layouts, pages = LayoutPair(self._layout, self.cache.store.layout), self.cache.store.num_blocks
        decoded = DecodeStats(layouts, pages, self.passes, generation.draft_stats)
        shown = tuple(generation.tokens[: generation.num_shown])
        self._memo = self._learn(SampledAnswer(shown, request.answer_text, self._message.value()), self.restored.session)
        reasoning_tokens = self.model.tokenizer.num_within(generation.tokens, self._parser.reasoning_chars)
        usage = Usage(request.prompt_tokens, self.restored.reused_tokens, generation.num_sampled, reasoning_tokens)
        request.describe_miss = partial(miss.describe, self.restored.miss_reason, request.prompt, self.model.tokenizer)
        return Cost(
            usage,
            report(
                self.model.family,
                request,
                self.restored,
                self.prefilled,
                decoded,
                usage,
                self._durable_tokens(),
                self.timing,
                self.others_s,
            ),
        )

    def store(self) -> None:
        """Store the conversation in the bank, after the last event was posted: nobody waits for it. Neither an import that was cancelled
        nor an empty state is stored.

        Raises NumericsError, BankError, what MLX raises.
        """
        if self.generation is not None:
            self._remember(self.generation.store())
        elif self.cache.length and not self.request.archived:
            self._remember(list(self.request.prompt.tokens[: self.cache.length]))

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

    def _generation(self) -> Generation:
        requested = self.request.job.logprobs
        return Generation(
            self.model.steps,
            self.cache,
            self.request.prompt.tokens,
            self.request.job.sampling,
            Answer(self.model.tokenizer, self.request.job.stop, self.request.prompt.reasoning_end),
            max_tokens=self.request.max_tokens,
            stop_ids=self.model.tokenizer.stop_ids,
            policy=self.model.policy,
            num_top=requested.num_top if requested else None,
            matcher=self.request.matcher,
            loops=LoopDetector() if self.request.job.is_loop_broken else None,
        )

    def _durable_tokens(self) -> int:
        prompt, tenant = self.request.prompt, self.request.job.tenant
        return 0 if self._bypass_reason() else self.model.bank.durable_tokens(prompt.tokens, tenant=tenant)

    def _learn(self, answered: SampledAnswer, session: str) -> Memo | None:
        """Remember how the answer was sampled, before the client can send it back."""
        if self._bypass_reason() or self.request.running.is_removed:
            return None
        return prompt_encoding.learn(self.model.prompter, self.request.job, self.request.prompt, answered, session)

    def _remember(self, tokens: list[int]) -> None:
        if self._bypass_reason():
            return
        cache, restored = self.cache, self.restored
        _check_finite(cache)
        snapshots = [*self.snapshots, cache.snapshot()]
        job, message_end, num_new = self.request.job, self.request.prompt.message_end, len(snapshots) - len(restored.snapshots)
        turns = self.request.archived.turns if self.request.archived else restored.turns + 1
        head = policy.first_message_end(tokens, message_end, self.model.tokenizer.stop_ids)
        names = self._title(), job.client, job.agent
        turn = FinishedTurn(
            restored.session,
            job.tenant,
            turns,
            message_end,
            num_new,
            self._memo,
            restored.unsaved,
            head,
            *names,
            restored.used_s,
            restored.running,
        )
        self.model.bank.remember(cache, tokens, snapshots, turn)

    def _title(self) -> str:
        return title_of(self.request.job.prompt, lambda: self.model.tokenizer.decode(self.request.prompt.tokens[:TITLE_TOKENS]))

    def _post(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._message.take(piece)
            self.request.post(piece)

    def _post_prefill_progress(self) -> None:
        done, total, reused = self.cache.length, self.request.prompt_tokens, self.restored.reused_tokens
        pace_s = (time.monotonic() - self.timing.restored_s) / (done - reused) if done > reused else None
        self.request.post(PrefillProgress(done, total, reused, None if pace_s is None else round(pace_s * (total - done), 1)))


def _check_finite(cache: Cache[Any]) -> None:
    """Raises NumericsError: the state must not be stored."""
    if not bool(mx.all(mx.isfinite(cache.hidden))):
        raise NumericsError("the model's state contains non-finite numbers", hint="the weights may be damaged")
