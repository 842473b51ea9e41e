"""Decoding steps, compiled once per kind, layout and width. A step that runs eager has a named reason and is counted.

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
from forerun.state.trace import CompiledPass

Kind = Literal["verify", "draft"]
MAX_WIDTH = 8
NO_COMPILER = "no compiler"  # an eager_reason


class StepTable:
    """Compiled steps of one family. eager_reason: why all steps run eager, "" if they are compiled."""

    def __init__(self, family: Family, *, eager_reason: str) -> None:
        self.family, self.eager_reason = family, eager_reason
        self._passes: dict[tuple[Kind, Layout, int], CompiledPass] = {}
        self._counts: Counter[str] = Counter()

    def forward(self, tokens: mx.array, caches: Sequence[Cache[Any]], spans: Sequence[int], view: View) -> mx.array:
        """The target model over tokens [rows] int32, spans[j] of them of the lent cache j: hidden vectors [rows, dim]."""
        if self._is_compiled(spans):
            return view.run(self._pass("verify", caches[0].layout, spans[0]), spans[0], tokens, is_draft=False)
        return self.family.forward(tokens, spans, view)

    def draft(self, hidden: mx.array, tokens: mx.array, caches: Sequence[Cache[Any]], spans: Sequence[int], view: View) -> mx.array:
        """The draft head over hidden [rows, dim] and tokens [rows], spans[j] of them of the lent cache j: hidden vectors [rows, dim]."""
        if self._is_compiled(spans):
            return view.run(self._pass("draft", caches[0].layout, spans[0]), spans[0], hidden, tokens, is_draft=True)
        return self.family.draft(hidden, tokens, spans, view)

    def release(self) -> None:
        """Release all compiled passes. Call it on the thread that ran them; no step may follow."""
        for compiled in self._passes.values():
            compiled.release()
        self._passes.clear()

    def num_traces(self) -> int:
        """How often a step was traced: once per kind, layout, width and capacity."""
        return sum(p.num_traces for p in self._passes.values())

    def counts(self) -> Counter[str]:
        """Steps so far: "compiled", and eager ones by reason. The difference of two counts is the number of steps between them."""
        return self._counts.copy()

    def _is_compiled(self, spans: Sequence[int]) -> bool:
        reason = self.eager_reason or ("batch" if len(spans) > 1 else "width" if spans[0] > MAX_WIDTH else "")
        self._counts[reason or "compiled"] += 1
        return not reason

    def _pass(self, kind: Kind, layout: Layout, rows: int) -> CompiledPass:
        key = (kind, layout, rows)
        if key not in self._passes:
            family, spans = self.family, [rows]

            def verify(tokens: mx.array, view: View) -> mx.array:
                return family.forward(tokens, spans, view)

            def draft(hidden: mx.array, tokens: mx.array, view: View) -> mx.array:
                return family.draft(hidden, tokens, spans, view)

            self._passes[key] = CompiledPass(verify if kind == "verify" else draft, family.spec, layout, family.numerics)
        return self._passes[key]
