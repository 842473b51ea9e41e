"""What a request would wait for, done before the first: steps compiled, and a short turn played. Knows families and rounds, no text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx

from forerun.decode.compiled import StepTable
from forerun.decode.prefill import prefill
from forerun.decode.round import Rounds
from forerun.state.cache import Cache, lend
from forerun.state.layout import Contiguous, Layout
from forerun.state.records import materialise, relayout_as_chosen
from forerun.state.store import Arena
from forerun.values import GREEDY

PROMPT = [0] * 64  # more than a step is wide: kernels of many rows are others
SAMPLINGS = (GREEDY, replace(GREEDY, temperature=1.0, top_p=0.95, top_k=20), replace(GREEDY, temperature=1.0, top_k=20, seed=0))


def warm_up(steps: StepTable, layout: Layout, deepest: int, progress: Callable[[str, float], None]) -> None:
    """Compile, or try once, every step that rounds of up to `deepest` drafts take, and what reads prompts and draws tokens."""
    arena = Arena(steps.family.spec)
    warm = relayout_as_chosen(materialise(arena, [], None, Contiguous(), 0), layout)
    for rows in range(1, deepest + 2):
        progress("compiling steps", rows / (deepest + 3))
        _step(steps, warm, rows, with_draft=deepest > 0)
    progress("trying a turn", (deepest + 2) / (deepest + 3))
    _turn(steps, arena, layout, deepest)


def _step(steps: StepTable, cache: Cache[Any], rows: int, *, with_draft: bool) -> None:
    """A verification and a draft of so many rows, none of which is kept."""
    family, tokens = steps.family, mx.zeros((rows,), dtype=mx.int32)
    with lend([cache], family.numerics) as view:
        hidden = steps.forward(tokens, cache, view)
        view.keep([0], hidden)
        if with_draft:
            hidden = steps.draft(hidden, tokens, cache, view)
            view.keep_draft([0])
        mx.eval(family.head(hidden), cache.arrays())


def _turn(steps: StepTable, arena: Arena, layout: Layout, deepest: int) -> None:
    """A prompt with a mark inside, and rounds of each depth by each way of drawing."""
    read: Cache[Any] = materialise(arena, [], None, Contiguous(), 0)
    for _ in prefill(steps.family, read, PROMPT, [len(PROMPT) // 2]):
        pass
    cache = relayout_as_chosen(read, layout)
    for sampling in SAMPLINGS:
        rounds = Rounds(steps, cache, PROMPT, sampling)
        rounds.give([rounds.first()])
        for depth in range(deepest + 1):
            rounds.give(rounds.run(depth, len).tokens)
        rounds.settle()
