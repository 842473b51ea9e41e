"""One request on the thread that owns MLX: restore, prefill, relayout, rounds, remember. Knows no queue and no socket."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from forerun.bank import retain
from forerun.bank.bank import Bank, Restored
from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.decode.generate import Generation
from forerun.decode.prefill import prefill
from forerun.decode.tally import Tally
from forerun.engine.request import Request
from forerun.errors import ForerunError, NumericsError
from forerun.models.base import Family
from forerun.state.cache import Cache, Snapshot, layout_name
from forerun.state.layout import Contiguous, Limits, layout_for
from forerun.state.records import relayout_as_chosen
from forerun.text.answer import Answer
from forerun.text.tokenizer import Tokenizer
from forerun.values import Done, Reading, Report, StepKind, Usage

ROOM_TOKENS = 512
log = logging.getLogger(__name__)


class Cancelled(Exception):
    """The request was cancelled; what was computed has been remembered."""


@dataclass(slots=True)
class Timing:
    """Moments of one request, time.monotonic()."""

    restored_s: float = 0.0
    read_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Model:
    """All that serving needs, made on the thread that owns MLX."""

    steps: StepTable
    bank: Bank
    tokenizer: Tokenizer
    policy: DepthPolicy
    limits: Limits

    @property
    def family(self) -> Family:
        return self.steps.family


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How an answer was decoded: its cache's layout and pages, and the steps, "compiled" or by the reason why not."""

    layout: str
    paged_blocks: int
    steps: Counter[str]

    @property
    def step_kind(self) -> StepKind:
        if self.steps["compiled"] == 0:
            return "eager"
        return "compiled" if self.steps["compiled"] == self.steps.total() else "mixed"


@dataclass(slots=True)
class Turn:
    """Serves one request. Call `run` once."""

    model: Model
    request: Request
    between: Callable[[], object]
    timing: Timing = field(default_factory=Timing)

    def run(self) -> Done:
        """Serve the request, posting events; returns the last one. Raises Cancelled, NumericsError, and what MLX raises."""
        restored = self._restore()
        marks = list(restored.marks)
        cache = self._prefill(restored, marks)
        layout = layout_for("decode", cache.length + min(self.request.max_tokens, ROOM_TOKENS), self.model.limits)
        return self._answer(relayout_as_chosen(cache, layout), restored, marks)

    def _restore(self) -> Restored[Contiguous]:
        request, bank, tokens = self.request, self.model.bank, self.request.prompt.tokens
        room_tokens, session = min(request.max_tokens, ROOM_TOKENS), request.job.session
        layout = layout_for("prefill", len(tokens), self.model.limits)
        if request.job.bank == "bypass":
            restored = bank.cold(session=session, layout=layout, room_tokens=len(tokens) + room_tokens, reason="bypass")
        else:
            restored = bank.restore(tokens, tenant=request.job.tenant, session=session, layout=layout, room_tokens=room_tokens)
        self.timing.restored_s = time.monotonic()
        return restored

    def _prefill(self, restored: Restored[Contiguous], marks: list[Snapshot]) -> Cache[Contiguous]:
        cache, prompt = restored.cache, self.request.prompt
        marks_at = retain.marks_at(prompt.tokens, prompt.message_end, self.model.tokenizer.stop_ids)
        self._post_reading(restored)
        for new in prefill(self.model.family, cache, prompt.tokens, marks_at):
            marks += new
            self._post_reading(restored)
            if cache.length == len(prompt.tokens):
                break
            self.between()
            if self.request.is_cancelled:
                marks.append(cache.snapshot())
                self._remember(cache, list(prompt.tokens[: cache.length]), marks, restored)
                raise Cancelled
        self.timing.read_s = time.monotonic()
        return cache

    def _answer(self, cache: Cache[Any], restored: Restored[Contiguous], marks: list[Snapshot]) -> Done:
        request, before = self.request, self.model.steps.counts()
        generation = Generation(
            self.model.steps,
            cache,
            request.prompt.tokens,
            request.job.sampling,
            Answer(self.model.tokenizer, request.job.stop),
            max_tokens=request.max_tokens,
            stop_ids=self.model.tokenizer.stop_ids,
            policy=self.model.policy,
        )
        for text in generation:
            self.timing.last_s = time.monotonic()
            self.timing.first_s = self.timing.first_s or self.timing.last_s
            if text.text:
                request.post(text)
            if request.is_cancelled:
                break
        arrangement = Arrangement(layout_name(cache), cache.store.num_blocks, self.model.steps.counts() - before)
        stored = generation.store()
        marks.append(cache.snapshot())
        self._remember(cache, stored, marks, restored)
        if request.job.bank == "use":
            shown = generation.tokens[: generation.num_shown]
            self.model.tokenizer.learn(request.prompt.tokens, shown, tenant=request.job.tenant)
        if generation.finish is None:
            raise Cancelled
        usage = Usage(request.prompt_tokens, restored.reused_tokens, generation.num_sampled)
        report = self._report(restored, arrangement, usage, generation.tally)
        return Done(generation.finish, usage, report, generation.stop_string)

    def _remember(self, cache: Cache[Any], tokens: list[int], marks: list[Snapshot], restored: Restored[Contiguous]) -> None:
        if self.request.job.bank == "bypass":
            return
        if not bool(mx.all(mx.isfinite(cache.hidden))):
            raise NumericsError("the model's state is not made of numbers", hint="the weights may be damaged")
        new = len(marks) - len(restored.marks)
        try:
            self.model.bank.remember(cache, tokens, marks, session=restored.session, tenant=self.request.job.tenant, new=new)
        except (ForerunError, MemoryError, RuntimeError, ValueError):  # the answer is there: it must not be lost with its state
            log.exception("request %s: the conversation could not be remembered", self.request.job.id)

    def _report(self, restored: Restored[Contiguous], arrangement: Arrangement, usage: Usage, tally: Tally) -> Report:
        t, request = self.timing, self.request
        computed = usage.prompt_tokens - usage.cached_tokens
        return Report(
            session=restored.session,
            source=restored.source,
            layout=arrangement.layout,
            paged_blocks=arrangement.paged_blocks,
            step_kind=arrangement.step_kind,
            steps=arrangement.steps.total(),
            compiled_steps=arrangement.steps["compiled"],
            eager_steps={reason: n for reason, n in arrangement.steps.items() if reason != "compiled"},
            numerics=self.model.family.numerics.name,
            reused_tokens=usage.cached_tokens,
            computed_tokens=computed,
            queue_s=request.started_s - request.arrived_s,
            restore_s=t.restored_s - request.started_s,
            ttft_s=t.first_s - request.arrived_s,
            prefill_tok_per_s=computed / (t.read_s - t.restored_s) if computed else None,
            decode_tok_per_s=(usage.completion_tokens - 1) / (t.last_s - t.first_s) if usage.completion_tokens > 1 else None,
            rounds=tally.rounds,
            tokens_per_round=(usage.completion_tokens - 1) / tally.rounds if tally.rounds else None,
            drafted=tuple(tally.drafted[: tally.deepest]),
            accepted=tuple(tally.accepted[: tally.deepest]),
            depths=tuple(tally.depths[: tally.deepest + 1]),
            reason=restored.reason,
        )

    def _post_reading(self, restored: Restored[Contiguous]) -> None:
        self.request.post(Reading(restored.cache.length, self.request.prompt_tokens, restored.reused_tokens))
