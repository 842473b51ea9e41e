"""Timings and counters of a turn, and the Report made of them. Decides nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forerun.bank.restore import RestoredState
from forerun.decode.draft_stats import DraftStats
from forerun.engine.request import Request
from forerun.log import short_id
from forerun.models.base import Family
from forerun.state.layout import Layout
from forerun.values import Report, StepKind, Usage


class Cost(NamedTuple):
    """Usage and report of a request whose prompt was prefilled."""

    usage: Usage
    report: Report


@dataclass(slots=True)
class Timing:
    """When one request was restored and prefilled, and its first and last piece; of time.monotonic()."""

    restored_s: float = 0.0
    prefilled_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass(slots=True)
class Passes:
    """The rounds that a sequence took part in. steps: count by "compiled", or else the reason for running eager; sequences, rows: sums over
    the rounds of what their verifications held.
    """

    steps: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    sequences: int = 0
    rows: int = 0

    def add(self, steps: Counter[str], sequences: int, rows: int) -> None:
        """Count a round."""
        self.steps.update(steps)
        self.rounds, self.sequences, self.rows = self.rounds + 1, self.sequences + sequences, self.rows + rows


@dataclass(frozen=True, slots=True)
class LayoutPair:
    """The chosen layout, and that of the cache's arrays."""

    requested: Layout
    actual: Layout


@dataclass(frozen=True, slots=True)
class DecodeStats:
    """How an answer was decoded. paged_blocks: of its cache."""

    layout: LayoutPair
    paged_blocks: int
    passes: Passes
    draft_stats: DraftStats

    @property
    def step_kind(self) -> StepKind:
        steps = self.passes.steps
        if steps["compiled"] == 0:
            return "eager"
        return "compiled" if steps["compiled"] == steps.total() else "mixed"


def summary(report: Report) -> str:
    """What the server's log says of a request at its end: what it waited for, and what it shared."""
    parts = [f"ends: {report.queue_s:.1f} s in the queue, {report.others_s:.1f} s for others"]
    if report.sequences_per_round is not None:
        parts.append(f"{report.sequences_per_round:.1f} sequences and {report.rows_per_round:.1f} rows a round")
    if report.forked_from:
        parts.append(f"forked from {short_id(report.forked_from)}")
    return ", ".join(parts)


def report(
    family: Family,
    request: Request,
    restored: RestoredState[Any],
    prefill: LayoutPair,
    decode_stats: DecodeStats,
    usage: Usage,
    durable_tokens: int,
    t: Timing,
    others_s: float,
) -> Report:
    """The report of one request, without its miss: see `Request.describe_miss`."""
    computed, draft_stats, passes = usage.prompt_tokens - usage.cached_tokens, decode_stats.draft_stats, decode_stats.passes
    return Report(
        session=restored.session,
        source=restored.source,
        prefill_layout=str(prefill.actual),
        requested_prefill_layout=str(prefill.requested),
        layout=str(decode_stats.layout.actual),
        requested_layout=str(decode_stats.layout.requested),
        paged_blocks=decode_stats.paged_blocks,
        step_kind=decode_stats.step_kind,
        steps=passes.steps.total(),
        compiled_steps=passes.steps["compiled"],
        eager_steps={reason: n for reason, n in passes.steps.items() if reason != "compiled"},
        numerics=family.numerics.name,
        reused_tokens=usage.cached_tokens,
        computed_tokens=computed,
        queue_s=request.started_s - request.arrived_s,
        others_s=others_s,
        sequences_per_round=passes.sequences / passes.rounds if passes.rounds else None,
        rows_per_round=passes.rows / passes.rounds if passes.rounds else None,
        forked_from=restored.forked_from,
        restore_s=t.restored_s - request.started_s,
        ttft_s=t.first_s - request.arrived_s,
        prefill_tok_per_s=computed / (t.prefilled_s - t.restored_s) if computed else None,
        decode_tok_per_s=(usage.completion_tokens - 1) / (t.last_s - t.first_s) if usage.completion_tokens > 1 else None,
        rounds=draft_stats.rounds,
        tokens_per_round=(usage.completion_tokens - 1) / draft_stats.rounds if draft_stats.rounds else None,
        drafted=tuple(draft_stats.drafted[: draft_stats.deepest]),
        accepted=tuple(draft_stats.accepted[: draft_stats.deepest]),
        depths=tuple(draft_stats.depths[: draft_stats.deepest + 1]),
        reason=restored.miss_reason.text,
        miss=None,
        rendering=request.prompt.notes,
        unenforced=request.unenforced,
        read_bytes=restored.read_bytes,
        durable_tokens=durable_tokens,
    )
