"""What families share: norms, the gated feed-forward block, rotary positions. Functions of arrays and of their weights alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

# MLX's CUDA kernel takes each row as a batch of one and cannot be launched with 128 of them (invalid argument, seen on 0.32.4).
_ROPE_ROWS = 64


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
class Linear:
    """x @ weight.T; weight [out, in]. Several projections of the same input may be stacked in one (`stacked`)."""

    weight: mx.array

    @classmethod
    def stacked(cls, *weights: mx.array) -> Linear:
        """One product instead of several; `mx.split` takes the result apart."""
        return cls(mx.concatenate(list(weights)))

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.weight.T


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
        if x.shape[0] > _ROPE_ROWS and mx.cuda.is_available():
            return self.by_angles(x, positions)
        return mx.fast.rope(x[:, :, None], self.dims, traditional=False, base=self.theta, scale=1.0, offset=positions)[:, :, 0]

    def by_angles(self, x: mx.array, positions: mx.array) -> mx.array:
        """The same in plain array operations."""
        half = self.dims // 2
        frequencies = mx.exp(mx.arange(half) * (-math.log(self.theta) / half))
        angles = positions[:, None, None] * frequencies
        left, right, rest = mx.split(x, (half, self.dims), axis=-1)
        cos, sin = mx.cos(angles), mx.sin(angles)
        turned = [left * cos - right * sin, left * sin + right * cos]
        return mx.concatenate([*(t.astype(x.dtype) for t in turned), rest], axis=-1)
