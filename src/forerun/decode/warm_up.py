"""Work that the first request would wait for: compile the steps and run a short turn. Knows families and rounds, no text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx

from forerun.decode.compiled import StepTable
from forerun.decode.generate import MAX_FORCED
from forerun.decode.prefill import prefill
from forerun.decode.round import Rounds
from forerun.state.cache import Cache, lend
from forerun.state.conversion import materialise, relayout_as_chosen
from forerun.state.layout import Contiguous, Layout
from forerun.state.store import Arena
from forerun.values import GREEDY

PROMPT = [0] * 64  # wider than a step: many rows use other kernels
SAMPLINGS = (GREEDY, replace(GREEDY, temperature=1.0, top_p=0.95, top_k=20), replace(GREEDY, temperature=1.0, top_k=20, seed=0))


def warm_up(steps: StepTable, layout: Layout, deepest: int, progress: Callable[[str, float], None]) -> None:
    """Compile, or run once, every step of rounds with up to `deepest` drafts; then prefill and sampling."""
    arena = Arena(steps.family.spec)
    warm = relayout_as_chosen(materialise(arena, [], None, Contiguous(), 0), layout)
    widest = max(deepest, MAX_FORCED) + 1
    for rows in range(1, widest + 1):
        progress("compiling steps", rows / (widest + 2))
        _step(steps, warm, rows, with_draft=0 < deepest >= rows - 1)
    progress("running a turn", (widest + 1) / (widest + 2))
    _turn(steps, arena, layout, deepest)


def _step(steps: StepTable, cache: Cache[Any], rows: int, *, with_draft: bool) -> None:
    """A verification and a draft of `rows` rows, none of which is kept."""
    family, tokens = steps.family, mx.zeros((rows,), dtype=mx.int32)
    with lend([cache], family.numerics) as view:
        hidden = steps.forward(tokens, [cache], [rows], view)
        view.keep([0], hidden)
        if with_draft:
            hidden = steps.draft(hidden, tokens, [cache], [rows], view)
            view.keep_draft([0])
        mx.eval(family.head(hidden), cache.arrays())


def _turn(steps: StepTable, arena: Arena, layout: Layout, deepest: int) -> None:
    """A prompt with a snapshot inside, and rounds of each depth with each kind of sampling."""
    prefilled: Cache[Any] = materialise(arena, [], None, Contiguous(), 0)
    for _ in prefill(steps.family, prefilled, PROMPT, [len(PROMPT) // 2]):
        pass
    cache = relayout_as_chosen(prefilled, layout)
    for sampling in SAMPLINGS:
        rounds = Rounds(steps, cache, PROMPT, sampling)
        rounds.append([rounds.first()])
        for depth in range(deepest + 1):
            rounds.append(rounds.run(depth, len).tokens)
        rounds.complete_draft_rows()
