"""A pass over one cache as a function of arrays alone, so that it can be compiled: lengths are arrays, what changes is returned.

Knows nothing of models: the pass is given, as it would run on a View.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx

from forerun.kernels.numerics import Numerics
from forerun.state.cache import Arrays, Cache, Rule, View
from forerun.state.layout import Layout
from forerun.state.spec import StateSpec
from forerun.state.store import Store, traced

Pass = Callable[..., mx.array]


class Outcome(NamedTuple):
    """hidden [rows, dim]; for each recurrent layer its arrays after all rows, and what its rule took; the buffers to go on with."""

    hidden: mx.array
    after: list[Arrays]
    taken: list[Arrays]
    buffers: list[mx.array]


class CompiledPass:
    """`run(*inputs, view)` over one cache in `layout`, compiled. A new capacity traces it anew; `num_traces` counts."""

    def __init__(self, run: Pass, spec: StateSpec, layout: Layout, numerics: Numerics) -> None:
        self._run, self._spec, self._layout, self._numerics = run, spec, layout, numerics
        self._step = mx.compile(self._trace)
        self.rules: list[Rule] = []
        self.num_traces = 0

    def __call__(
        self, inputs: Sequence[mx.array], start: int, recurrent: Sequence[Arrays], buffers: list[mx.array], constants: list[mx.array]
    ) -> Outcome:
        """The pass after `start` rows. The buffers are given away: they are written in place if the caller holds no other reference."""
        return Outcome(*self._step(list(inputs), mx.array(start, dtype=mx.int32), list(recurrent), buffers, constants))

    def release(self) -> None:
        """Give up what was compiled. On the thread that ran it, whose cache of compiled functions holds it: a thread that ends with
        something in that cache asks for an interpreter that may be gone, and the process aborts.
        """
        del self._step

    def _trace(
        self, inputs: list[mx.array], start: mx.array, recurrent: list[Arrays], buffers: list[mx.array], constants: list[mx.array]
    ) -> tuple[mx.array, list[Arrays], list[Arrays], list[mx.array]]:
        self.num_traces += 1
        cache = _Traced(self._spec, traced(self._layout, list(buffers), constants), start, [tuple(r) for r in recurrent])
        view = View([cast("Cache[Any]", cache)], self._numerics)
        hidden = self._run(*inputs, view)
        after, taken, self.rules = view.recurrence()
        return hidden, after, taken, cache.store.buffers


class _Traced:
    """What a View needs of a cache."""

    def __init__(self, spec: StateSpec, store: Store, start: mx.array, recurrent: list[Arrays]) -> None:
        self.spec, self.store, self.recurrent = spec, store, recurrent
        self.length = self.draft_length = start
