"""What a turn cost, gathered while it runs, and its Report. Decides nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from forerun.bank.restore import Restored
from forerun.decode.tally import Tally
from forerun.engine.request import Request
from forerun.models.base import Family
from forerun.state.layout import Layout
from forerun.values import Miss, Report, StepKind, Usage


class Cost(NamedTuple):
    """Of a request that gave tokens."""

    usage: Usage
    report: Report


@dataclass(slots=True)
class Timing:
    """Moments of one request, time.monotonic()."""

    restored_s: float = 0.0
    read_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Arranged:
    """A layout that was chosen, and how the cache's arrays then lay."""

    asked: Layout
    found: Layout


@dataclass(frozen=True, slots=True)
class Decoded:
    """How an answer was decoded: the cache's layout and pages, and the steps, "compiled" or by the reason why not."""

    layout: Arranged
    paged_blocks: int
    steps: Counter[str]
    tally: Tally

    @property
    def step_kind(self) -> StepKind:
        if self.steps["compiled"] == 0:
            return "eager"
        return "compiled" if self.steps["compiled"] == self.steps.total() else "mixed"


def report(
    family: Family,
    request: Request,
    restored: Restored[Any],
    missed: Miss | None,
    prefill: Arranged,
    decoded: Decoded,
    usage: Usage,
    t: Timing,
) -> Report:
    """The report of a request that gave at least one token."""
    computed, tally = usage.prompt_tokens - usage.cached_tokens, decoded.tally
    return Report(
        session=restored.session,
        source=restored.source,
        prefill_layout=str(prefill.found),
        asked_prefill_layout=str(prefill.asked),
        layout=str(decoded.layout.found),
        draft_layout=str(decoded.layout.found) if family.spec.draft_layers else None,
        asked_layout=str(decoded.layout.asked),
        paged_blocks=decoded.paged_blocks,
        step_kind=decoded.step_kind,
        steps=decoded.steps.total(),
        compiled_steps=decoded.steps["compiled"],
        eager_steps={reason: n for reason, n in decoded.steps.items() if reason != "compiled"},
        numerics=family.numerics.name,
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
        reason=restored.why.words,
        miss=missed,
        rendering=request.prompt.notes,
        read_bytes=restored.read_bytes,
    )
