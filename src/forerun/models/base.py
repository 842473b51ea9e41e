"""The protocol of a model family. Knows no family; a family accesses caches through `View` (state/cache.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import mlx.core as mx

from forerun.kernels.numerics import Numerics
from forerun.state.cache import View
from forerun.state.spec import StateSpec


class Family(Protocol):
    """A loaded model. Rows of several sequences lie end to end; a row depends only on earlier rows of its own sequence."""

    name: str
    spec: StateSpec
    vocab: int
    context_tokens: int
    numerics: Numerics
    linear_shapes: frozenset[tuple[int, int]]

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        """Hidden vectors [rows, dim] after the final norm for tokens [rows] int32. Writes new rows, which only `view.keep` makes state."""

    def passes(self, tokens: mx.array, spans: Sequence[int], view: View) -> Iterator[mx.array]:
        """`forward` layer by layer: the rows after each layer, at last its result. Other caches may be passed over in between."""

    def head(self, hidden: mx.array) -> mx.array:
        """Logits [rows, vocab] float32 for hidden [rows, dim], of the target or of a draft."""

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        """Hidden vectors [rows, dim] from which `head` predicts the token after each of `tokens`.

        Row p is computed from hidden [dim] at position p - 1 (of the target, or of an earlier draft) and the token at p.
        """
