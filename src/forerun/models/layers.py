"""What families share: norms, the gated feed-forward block, rotary positions. Functions of arrays and of their weights alone."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from forerun.kernels.cuda_source import is_cuda
from forerun.models.linear import Linear


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x)."""
    return x * mx.sigmoid(x)


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm over the last axis; weight [dim] is the gain itself (zero-centred checkpoints are shifted when they are read)."""

    weight: mx.array
    eps: float

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Mlp:
    """SwiGLU: down(silu(gate(x)) * up(x)), gate and up stacked."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = mx.split(self.gate_up(x), 2, axis=-1)
        return self.down(silu(gate) * up)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions on the first `dims` of each head, half-split pairs."""

    dims: int
    theta: float

    def __call__(self, x: mx.array, positions: mx.array) -> mx.array:
        """x [rows, heads, dim] turned by its row's position; positions [rows] int32."""
        most = self._most_rows(x)
        parts = [self._turn(x[i : i + most], positions[i : i + most]) for i in range(0, x.shape[0], most)]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def _turn(self, x: mx.array, positions: mx.array) -> mx.array:
        return mx.fast.rope(x[:, :, None], self.dims, traditional=False, base=self.theta, scale=1.0, offset=positions)[:, :, 0]

    def _most_rows(self, x: mx.array) -> int:
        """Rows that one launch can take: of few dims and many rows MLX (0.32.4) makes CUDA blocks deeper than the 64 that there may be."""
        rows, heads, _ = x.shape
        return 127 // -(-heads // 4) if self.dims < 32 and is_cuda() else rows
