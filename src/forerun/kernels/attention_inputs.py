"""Queries, keys and values of an attention layer from its stacked projection: split, normalised, rotated; and the gates of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from forerun.kernels import cpu
from forerun.kernels.cpu.operations import Operations
from forerun.kernels.norms import rms_norm
from forerun.kernels.rope import Rope


class HeadNorms(NamedTuple):
    """Gains [head_dim] of the norms of queries and keys."""

    q: mx.array
    k: mx.array
    eps: float


class Heads(NamedTuple):
    """q [rows, heads, head_dim]; k, v [rows, kv_heads, head_dim]."""

    q: mx.array
    k: mx.array
    v: mx.array


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Of rows projected as [queries, keys, values]. is_gated: each head's query is followed by its gate.

    frequencies: those of `rope`, evaluated once.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    frequencies: mx.array
    norms: HeadNorms | None
    is_gated: bool

    def __call__(self, projected: mx.array, positions: mx.array) -> Heads:
        """projected [rows, width]; positions [rows] int32."""
        kernels, rows, kv_width = self._kernels(), projected.shape[0], self.kv_heads * self.head_dim
        v = projected[:, -kv_width:].reshape(rows, self.kv_heads, self.head_dim)
        if kernels is None:
            return Heads(*self._portable(projected, positions), v)
        q_gain, k_gain, eps = self.norms or (None, None, 0.0)
        sizes = self.heads, self.kv_heads, self.head_dim
        q, k = kernels.attention_inputs(
            projected, q_gain, k_gain, eps, positions, self.frequencies, *sizes, self.is_gated, self.rope.is_traditional
        )
        return Heads(q, k, v)

    def gated(self, y: mx.array, projected: mx.array) -> mx.array:
        """The attention's output y [rows, heads, head_dim] times the sigmoid of the gates in `projected`: [rows, heads * head_dim]."""
        kernels = self._kernels()
        if kernels:
            return kernels.sigmoid_gate(y, projected, self.heads, self.head_dim)
        return (y * mx.sigmoid(self._queries(projected)[..., self.head_dim :])).reshape(y.shape[0], -1)

    def _queries(self, projected: mx.array) -> mx.array:
        """Queries, with their gates if there are any."""
        width = self.head_dim * (1 + self.is_gated)
        return projected[:, : self.heads * width].reshape(-1, self.heads, width)

    def _portable(self, projected: mx.array, positions: mx.array) -> tuple[mx.array, mx.array]:
        kv_width = self.kv_heads * self.head_dim
        q = self._queries(projected)[..., : self.head_dim]
        k = projected[:, -2 * kv_width : -kv_width].reshape(-1, self.kv_heads, self.head_dim)
        if self.norms:
            q, k = rms_norm(q, self.norms.q, self.norms.eps), rms_norm(k, self.norms.k, self.norms.eps)
        return self.rope(q, positions), self.rope(k, positions)

    def _kernels(self) -> Operations | None:
        return cpu.extension() if self.head_dim % 16 == 0 else None
