"""Rotary positions (Su et al., arXiv 2104.09864)."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from forerun.kernels.cuda_source import is_cuda


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions on the first `dims` of each head. is_traditional: pairs are adjacent, not a half apart.

    periods: [dims / 2] float32 instead of the powers of theta.
    """

    dims: int
    theta: float
    is_traditional: bool = False
    periods: mx.array | None = None

    def __post_init__(self) -> None:
        mx.eval(self.periods)  # once, not in each step

    def __call__(self, x: mx.array, positions: mx.array) -> mx.array:
        """x [rows, heads, dim] rotated by its row's position; positions [rows] int32."""
        num = self._max_rows(x)
        parts = [self._rotate(x[i : i + num], positions[i : i + num]) for i in range(0, x.shape[0], num)]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def frequencies(self) -> mx.array:
        """Radians per position [dims / 2] float32."""
        if self.periods is not None:
            return mx.array((1.0 / np.array(self.periods, dtype=np.float64)).astype(np.float32))
        return mx.array((self.theta ** -(np.arange(0, self.dims, 2) / self.dims)).astype(np.float32))

    def _rotate(self, x: mx.array, positions: mx.array) -> mx.array:
        base = self.theta if self.periods is None else None
        rotated = mx.fast.rope(
            x[:, :, None], self.dims, traditional=self.is_traditional, base=base, scale=1.0, offset=positions, freqs=self.periods
        )
        return rotated[:, :, 0]

    def _max_rows(self, x: mx.array) -> int:
        """Rows per launch: for few dims and many rows MLX (0.32.4) makes CUDA blocks deeper than the limit of 64."""
        rows, heads, _ = x.shape
        return 127 // -(-heads // 4) if self.dims < 32 and is_cuda() else rows
