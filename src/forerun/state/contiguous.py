"""Keys and values of all attention layers in one array a layer, [kv_heads, capacity, head_dim]. Knows no lengths: callers say where."""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels.numerics import Numerics
from forerun.kernels.write_rows import write_rows
from forerun.state.spec import AttentionSpec

CAPACITY_STEP_TOKENS = 256


def round_up(tokens: int) -> int:
    """The capacity that holds `tokens`: a multiple of CAPACITY_STEP_TOKENS, at least one."""
    return max(1, -(-tokens // CAPACITY_STEP_TOKENS)) * CAPACITY_STEP_TOKENS


class ContiguousStore:
    """The buffers of one cache. Every row of them is finite at all times: a masked NaN would leak (0 x NaN)."""

    def __init__(self, specs: tuple[AttentionSpec, ...], capacity: int) -> None:
        self.capacity = capacity
        self.keys = [_zeros(s, capacity) for s in specs]
        self.values = [_zeros(s, capacity) for s in specs]

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` rows. Grows by a quarter at least, array by array, the old one freed before the next."""
        if tokens <= self.capacity:
            return
        self.capacity = round_up(max(tokens, self.capacity + self.capacity // 4))
        for buffers in (self.keys, self.values):
            for i, old in enumerate(buffers):
                buffers[i] = mx.pad(old, [(0, 0), (0, self.capacity - old.shape[1]), (0, 0)])
                del old
                mx.eval(buffers[i])

    def write(self, layer: int, start: int, keys: mx.array, values: mx.array) -> None:
        """Put rows [kv_heads, n, head_dim] of attention layer `layer` at `start`, in place."""
        self.keys[layer] = write_rows(self.keys[layer], keys, start)
        self.values[layer] = write_rows(self.values[layer], values, start)

    def attend(self, layer: int, q: mx.array, positions: mx.array, stop: int, first: int, numerics: Numerics) -> mx.array:
        """Attention of q [heads, rows, dim] at `positions` over the rows first..stop of the layer."""
        stop = -(-stop // numerics.key_block) * numerics.key_block
        return numerics.attention(q, self.keys[layer][:, :stop], self.values[layer][:, :stop], positions, first)

    def arrays(self) -> list[mx.array]:
        """Keys and values of every layer, in the order in which a segment stores them."""
        return [a for pair in zip(self.keys, self.values, strict=True) for a in pair]


def _zeros(spec: AttentionSpec, capacity: int) -> mx.array:
    return mx.zeros((spec.kv_heads, capacity, spec.head_dim), dtype=getattr(mx, spec.dtype))
