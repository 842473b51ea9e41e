"""Decoding steps, compiled once per kind, layout and widths. A step that runs eager has a named reason and is counted.

Knows families and views; nothing of rounds, sampling or requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx

from forerun.models.base import Family
from forerun.state.cache import Cache, View
from forerun.state.layout import Layout
from forerun.state.store import are_in_one_pool
from forerun.state.trace import CompiledPass

Kind = Literal["verify", "draft"]
Key = tuple[Kind, Layout, tuple[int, ...]]
MAX_WIDTH = 8
NEW_BATCH_STEPS = 8  # that a kind of batch runs eager: compiling takes as long as some of them
NO_COMPILER = "no compiler"  # an eager_reason


class StepTable:
    """Compiled steps of one family. eager_reason: why all steps run eager, "" if they are compiled."""

    def __init__(self, family: Family, *, eager_reason: str) -> None:
        self.family, self.eager_reason = family, eager_reason
        self._passes: dict[Key, CompiledPass] = {}
        self._batches: Counter[Key] = Counter()
        self._counts: Counter[str] = Counter()

    def forward(self, tokens: mx.array, caches: Sequence[Cache[Any]], spans: Sequence[int], view: View) -> mx.array:
        """The target model over tokens [rows] int32, spans[j] of them of the lent cache j: hidden vectors [rows, dim]."""
        if compiled := self._compiled("verify", caches, spans):
            return view.run(compiled, spans, tokens, is_draft=False)
        return self.family.forward(tokens, spans, view)

    def draft(self, hidden: mx.array, tokens: mx.array, caches: Sequence[Cache[Any]], spans: Sequence[int], view: View) -> mx.array:
        """The draft head over hidden [rows, dim] and tokens [rows], spans[j] of them of the lent cache j: hidden vectors [rows, dim]."""
        if compiled := self._compiled("draft", caches, spans):
            return view.run(compiled, spans, hidden, tokens, is_draft=True)
        return self.family.draft(hidden, tokens, spans, view)

    def release(self) -> None:
        """Release all compiled passes. Call it on the thread that ran them; no step may follow."""
        for compiled in self._passes.values():
            compiled.release()
        self._passes.clear()

    def num_traces(self) -> int:
        """How often a step was traced: once per kind, layout, widths and capacity."""
        return sum(p.num_traces for p in self._passes.values())

    def counts(self) -> Counter[str]:
        """Steps so far: "compiled", and eager ones by reason. The difference of two counts is the number of steps between them."""
        return self._counts.copy()

    def _compiled(self, kind: Kind, caches: Sequence[Cache[Any]], spans: Sequence[int]) -> CompiledPass | None:
        """The pass to run, None for an eager one."""
        key = (kind, caches[0].layout, tuple(spans))
        reason = self.eager_reason or ("width" if max(spans) > MAX_WIDTH else self._batch_reason(key, caches))
        self._counts[reason or "compiled"] += 1
        return None if reason else self._pass(key)

    def _batch_reason(self, key: Key, caches: Sequence[Cache[Any]]) -> str:
        """Why several caches run eager, "" if they are compiled or there is one: rows that differ in number, or caches that share no pool,
        would be traced for every combination; and a batch is compiled once it has lasted.
        """
        if len(caches) == 1:
            return ""
        if len(set(key[2])) > 1 or not are_in_one_pool([c.store for c in caches]):
            return "batch"
        self._batches[key] += 1
        return "new batch" if self._batches[key] <= NEW_BATCH_STEPS else ""

    def _pass(self, key: Key) -> CompiledPass:
        if key not in self._passes:
            family, (kind, layout, spans) = self.family, key

            def verify(tokens: mx.array, view: View) -> mx.array:
                return family.forward(tokens, spans, view)

            def draft(hidden: mx.array, tokens: mx.array, view: View) -> mx.array:
                return family.draft(hidden, tokens, spans, view)

            self._passes[key] = CompiledPass(verify if kind == "verify" else draft, family.spec, layout, family.numerics)
        return self._passes[key]
