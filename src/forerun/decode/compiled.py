"""Steps of decoding, compiled once for each kind, layout and width. A step that runs eager has a reason with a name, and is counted.

Knows families and views; nothing of rounds, sampling or requests.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import mlx.core as mx

from forerun.models.base import Family
from forerun.state.cache import View
from forerun.state.layout import Layout
from forerun.state.trace import CompiledPass

Kind = Literal["verify", "draft"]
MAX_WIDTH = 8


class StepTable:
    """Compiled steps of one family. eager_reason: why all steps run eager, "" if they are to be compiled.

    num_steps, num_compiled: since the start. eager: number of the other steps by reason.
    """

    def __init__(self, family: Family, *, eager_reason: str) -> None:
        self._family, self.eager_reason = family, eager_reason
        self._passes: dict[tuple[Kind, Layout, int], CompiledPass] = {}
        self.num_steps = self.num_compiled = 0
        self.eager: Counter[str] = Counter()

    def forward(self, tokens: mx.array, layout: Layout, view: View) -> mx.array:
        """The trunk over tokens [rows] int32 of one sequence: hidden vectors [rows, dim]."""
        if self._is_compiled(tokens.shape[0]):
            return view.run(self._pass("verify", layout, tokens.shape[0]), tokens.shape[0], tokens, is_draft=False)
        return self._family.forward(tokens, [tokens.shape[0]], view)

    def draft(self, hidden: mx.array, tokens: mx.array, layout: Layout, view: View) -> mx.array:
        """The draft head over hidden [rows, dim] and tokens [rows] of one sequence: hidden vectors [rows, dim]."""
        if self._is_compiled(tokens.shape[0]):
            return view.run(self._pass("draft", layout, tokens.shape[0]), tokens.shape[0], hidden, tokens, is_draft=True)
        return self._family.draft(hidden, tokens, [tokens.shape[0]], view)

    def num_traces(self) -> int:
        """How often a step was traced: once a kind, layout and width, and once more a capacity."""
        return sum(p.num_traces for p in self._passes.values())

    def _is_compiled(self, rows: int) -> bool:
        reason = self.eager_reason or ("width" if rows > MAX_WIDTH else "")
        self.num_steps += 1
        self.num_compiled += not reason
        if reason:
            self.eager[reason] += 1
        return not reason

    def _pass(self, kind: Kind, layout: Layout, rows: int) -> CompiledPass:
        key = (kind, layout, rows)
        if key not in self._passes:
            family, spans = self._family, [rows]

            def verify(tokens: mx.array, view: View) -> mx.array:
                return family.forward(tokens, spans, view)

            def draft(hidden: mx.array, tokens: mx.array, view: View) -> mx.array:
                return family.draft(hidden, tokens, spans, view)

            self._passes[key] = CompiledPass(verify if kind == "verify" else draft, family.spec, layout, family.numerics)
        return self._passes[key]
