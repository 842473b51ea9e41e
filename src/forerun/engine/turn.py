"""One request on the thread that owns MLX: restore, prefill, relayout, rounds, remember. Knows no queue and no socket."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forerun.bank import retain
from forerun.bank.bank import Bank, Restored
from forerun.decode.depth import DepthPolicy
from forerun.decode.generate import Generation
from forerun.decode.prefill import prefill
from forerun.decode.tally import Tally
from forerun.engine.request import Request
from forerun.models.base import Family
from forerun.state.cache import Cache, Snapshot, layout_name
from forerun.state.layout import Contiguous, layout_for
from forerun.state.records import relayout
from forerun.text.answer import Answer
from forerun.text.tokenizer import Tokenizer
from forerun.values import Done, Reading, Report, Usage

ROOM_TOKENS = 512
STEP_KIND = "eager"


class Cancelled(Exception):
    """The request was cancelled; what was computed has been remembered."""


@dataclass(slots=True)
class Timing:
    """Moments of one request, time.monotonic()."""

    restored_s: float = 0.0
    read_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass(slots=True)
class Turn:
    """Serves one request. Call `run` once."""

    family: Family
    bank: Bank
    tokenizer: Tokenizer
    policy: DepthPolicy
    request: Request
    between: Callable[[], object]
    timing: Timing = field(default_factory=Timing)

    def run(self) -> Done:
        """Serve the request, posting events; returns the last one. Raises Cancelled, NumericsError, and what MLX raises."""
        restored = self._restore()
        marks = list(restored.marks)
        cache = self._prefill(restored, marks)
        return self._answer(relayout(cache, layout_for("decode", cache.length)), restored, marks)

    def _restore(self) -> Restored[Contiguous]:
        request, tokens = self.request, self.request.prompt.tokens
        layout, room_tokens = layout_for("prefill", len(tokens)), min(request.max_tokens, ROOM_TOKENS)
        if request.job.bank == "bypass":
            restored = self.bank.cold(session=request.job.session, layout=layout, room_tokens=len(tokens) + room_tokens, reason="bypass")
        else:
            restored = self.bank.restore(
                tokens, tenant=request.job.tenant, session=request.job.session, layout=layout, room_tokens=room_tokens
            )
        self.timing.restored_s = time.monotonic()
        return restored

    def _prefill(self, restored: Restored[Contiguous], marks: list[Snapshot]) -> Cache[Contiguous]:
        cache, prompt = restored.cache, self.request.prompt
        self._post_reading(restored)
        for new in prefill(self.family, cache, prompt.tokens, retain.marks_at(prompt.tokens, prompt.message_end, self.tokenizer.stop_ids)):
            marks += new
            self._post_reading(restored)
            self.between()
            if self.request.is_cancelled and cache.length < len(prompt.tokens):
                marks.append(cache.snapshot())
                self._remember(cache, list(prompt.tokens[: cache.length]), marks, restored)
                raise Cancelled
        self.timing.read_s = time.monotonic()
        return cache

    def _answer(self, cache: Cache[Any], restored: Restored[Contiguous], marks: list[Snapshot]) -> Done:
        request, layout = self.request, layout_name(cache)
        generation = Generation(
            self.family,
            cache,
            request.prompt.tokens,
            request.job.sampling,
            Answer(self.tokenizer, request.job.stop),
            max_tokens=request.max_tokens,
            stop_ids=self.tokenizer.stop_ids,
            policy=self.policy,
        )
        for text in generation:
            self.timing.last_s = time.monotonic()
            self.timing.first_s = self.timing.first_s or self.timing.last_s
            if text.text:
                request.post(text)
            if request.is_cancelled:
                break
        stored = generation.store()
        marks.append(cache.snapshot())
        self._remember(cache, stored, marks, restored)
        if request.job.bank == "use":
            shown = generation.tokens[: generation.num_shown]
            self.tokenizer.learn(request.prompt.tokens, shown, tenant=request.job.tenant)
        if generation.finish is None:
            raise Cancelled
        usage = Usage(request.prompt_tokens, restored.reused_tokens, generation.num_sampled)
        return Done(generation.finish, usage, self._report(restored, layout, usage, generation.tally))

    def _remember(self, cache: Cache[Any], tokens: list[int], marks: list[Snapshot], restored: Restored[Contiguous]) -> None:
        if self.request.job.bank == "use":
            new = len(marks) - len(restored.marks)
            self.bank.remember(cache, tokens, marks, session=restored.session, tenant=self.request.job.tenant, new=new)

    def _report(self, restored: Restored[Contiguous], layout: str, usage: Usage, tally: Tally) -> Report:
        t, request = self.timing, self.request
        computed = usage.prompt_tokens - usage.cached_tokens
        return Report(
            session=restored.session,
            source=restored.source,
            layout=layout,
            step_kind=STEP_KIND,
            numerics=self.family.numerics.name,
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
