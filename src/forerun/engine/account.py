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


def report(
    family: Family,
    request: Request,
    restored: Restored[Any],
    missed: Miss | None,
    prefill: Arranged,
    decoded: Decoded,
    usage: Usage,
    timing: Timing,
) -> Report:
    """The report of a request that gave at least one token."""
    return Report(
        session=restored.session,
        source=restored.source,
        read_bytes=restored.read_bytes,
        reused_tokens=usage.cached_tokens,
        computed_tokens=usage.prompt_tokens - usage.cached_tokens,
        reason=restored.why.words,
        miss=missed,
        rendering=request.prompt.notes,
        numerics=family.numerics.name,
        **_arrangement(prefill, decoded, has_drafts=bool(family.spec.draft_layers)),
        **_steps(decoded.steps),
        **_pace(request, usage, timing),
        **_drafting(decoded.tally, usage),
    )


def _arrangement(prefill: Arranged, decoded: Decoded, *, has_drafts: bool) -> dict[str, Any]:
    return {
        "asked_prefill_layout": str(prefill.asked),
        "prefill_layout": str(prefill.found),
        "asked_layout": str(decoded.layout.asked),
        "layout": str(decoded.layout.found),
        "draft_layout": str(decoded.layout.found) if has_drafts else None,
        "paged_blocks": decoded.paged_blocks,
    }


def _steps(steps: Counter[str]) -> dict[str, Any]:
    compiled, total = steps["compiled"], steps.total()
    kind: StepKind = "eager" if compiled == 0 else "compiled" if compiled == total else "mixed"
    eager = {reason: num for reason, num in steps.items() if reason != "compiled"}
    return {"step_kind": kind, "steps": total, "compiled_steps": compiled, "eager_steps": eager}


def _pace(request: Request, usage: Usage, t: Timing) -> dict[str, Any]:
    computed, more = usage.prompt_tokens - usage.cached_tokens, usage.completion_tokens - 1
    return {
        "queue_s": request.started_s - request.arrived_s,
        "restore_s": t.restored_s - request.started_s,
        "ttft_s": t.first_s - request.arrived_s,
        "prefill_tok_per_s": computed / (t.read_s - t.restored_s) if computed else None,
        "decode_tok_per_s": more / (t.last_s - t.first_s) if more > 0 else None,
    }


def _drafting(tally: Tally, usage: Usage) -> dict[str, Any]:
    """By depth, up to the deepest that occurred."""
    return {
        "rounds": tally.rounds,
        "tokens_per_round": (usage.completion_tokens - 1) / tally.rounds if tally.rounds else None,
        "drafted": tuple(tally.drafted[: tally.deepest]),
        "accepted": tuple(tally.accepted[: tally.deepest]),
        "depths": tuple(tally.depths[: tally.deepest + 1]),
    }
