"""A pass over caches as a function of arrays alone, so that MLX can compile it: lengths are arrays, changed arrays are returned.

Knows nothing of models: the caller gives the pass, as it would run on a View.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx

from forerun.kernels.numerics import Numerics
from forerun.kernels.states import Arrays, StateRef
from forerun.state.cache import Cache, PassResult, Rule, View, restored_form
from forerun.state.layout import Layout
from forerun.state.spec import StateSpec
from forerun.state.store import Store, traced_stores

Pass = Callable[..., mx.array]


class CompiledPass:
    """`run(*inputs, view)` over one cache in `layout`, or several in one pool, compiled. Each new capacity is traced again; `num_traces`
    counts.
    """

    def __init__(self, run: Pass, spec: StateSpec, layout: Layout, numerics: Numerics) -> None:
        self._run, self._spec, self._layout, self._numerics = run, spec, layout, numerics
        self._step = mx.compile(self._trace)
        self.rules: list[Rule] = []
        self.num_traces = 0

    def __call__(
        self,
        inputs: Sequence[mx.array],
        starts: Sequence[int],
        recurrent: Sequence[Arrays],
        buffers: list[mx.array],
        constants: list[mx.array],
    ) -> PassResult:
        """Run the pass after starts[j] rows of each. Takes over the buffers: written in place if the caller holds no other reference."""
        at = [mx.array(start, dtype=mx.int32) for start in starts]
        return PassResult(*self._step(list(inputs), at, list(recurrent), buffers, constants))

    def release(self) -> None:
        """Release the compiled function. Call it on the thread that ran it: a thread that ends with an entry in its cache of compiled
        functions needs an interpreter that may be gone, and the process aborts.
        """
        del self._step

    def _trace(
        self,
        inputs: list[mx.array],
        starts: list[mx.array],
        recurrent: list[Arrays],
        buffers: list[mx.array],
        constants: list[mx.array],
    ) -> tuple[mx.array, list[Arrays], list[Arrays], list[mx.array]]:
        self.num_traces += 1
        stores = traced_stores(self._layout, list(buffers), constants)
        states = [restored_form(tuple(arrays), len(stores)) for arrays in recurrent]
        parts = enumerate(zip(stores, starts, strict=True))
        caches = [_TracedCache(self._spec, store, start, [(each, j) for each in states]) for j, (store, start) in parts]
        view = View(cast("list[Cache[Any]]", caches), self._numerics)
        hidden = self._run(*inputs, view)
        after, rule_inputs, self.rules = view.recurrence()
        return hidden, after, rule_inputs, stores[0].buffers


class _TracedCache:
    """The attributes of a cache that a View uses."""

    def __init__(self, spec: StateSpec, store: Store, start: mx.array, states: list[StateRef]) -> None:
        self.spec, self.store, self.states = spec, store, states
        self.length = self.draft_length = start
