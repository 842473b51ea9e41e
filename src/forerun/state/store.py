"""Where the keys and values of one cache lie, whatever the layout; and the arena that stores are made from.

Knows rows and attention layers; nothing of lengths, marks or recurrent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from forerun.kernels.numerics import Numerics
from forerun.state.contiguous import ContiguousStore
from forerun.state.host import Host
from forerun.state.layout import Contiguous, Layout
from forerun.state.paged import PagedStore, Pool
from forerun.state.spec import StateSpec


class Store(Protocol):
    """Rows of all attention layers of one sequence. Every row is finite at all times: a masked NaN would leak (0 x NaN).

    Starts and stops are ints, or in a compiled step an int32 array and None (all rows there are).
    """

    buffers: list[mx.array]

    @property
    def layout(self) -> Layout:
        """How the rows really lie."""

    @property
    def capacity(self) -> int:
        """Rows there is room for."""

    @property
    def num_blocks(self) -> int:
        """Pages in use, 0 without pages."""

    @property
    def num_bytes(self) -> int:
        """Bytes occupied."""

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` rows."""

    def write(self, layer: int, start: int | mx.array, keys: mx.array, values: mx.array) -> None:
        """Put rows [kv_heads, n, head_dim] of attention layer `layer` at `start`, in place."""

    def attend(self, layer: int, q: mx.array, positions: mx.array, stop: int | None, first: int, numerics: Numerics) -> mx.array:
        """Attention of q [heads, rows, dim] at `positions` [rows] over the rows first..stop of the layer."""

    def take(self, start: int, stop: int) -> list[mx.array]:
        """Keys and values [kv_heads, stop - start, head_dim] of each layer, in the order of a segment. Not evaluated."""

    def put(self, start: int, rows: Sequence[mx.array]) -> None:
        """Put such rows at `start`, and evaluate."""

    def rows(self, start: int, stop: int) -> list[Host]:
        """As `take`, as the host sees them; of no use once the store has changed."""

    def fill(self, start: int, rows: Sequence[Host]) -> None:
        """As `put`, of rows as the host sees them."""

    def constants(self) -> list[mx.array]:
        """Arrays beside `buffers` that a compiled step needs and does not change."""


class Arena:
    """Makes stores for caches of one spec. Pages of all caches come from one pool a page size."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec
        self._pools: dict[int, Pool] = {}

    def store(self, layout: Layout, tokens: int) -> Store:
        """An empty store in `layout` with room for `tokens`."""
        if isinstance(layout, Contiguous):
            return ContiguousStore.empty(self.spec.attention, tokens)
        if layout.block_tokens not in self._pools:
            self._pools[layout.block_tokens] = Pool.empty(self.spec.attention, layout.block_tokens)
        return PagedStore.empty(self._pools[layout.block_tokens], tokens)

    @property
    def num_blocks(self) -> tuple[int, int]:
        """Pages of all pools: held by caches, and free."""
        pools = list(self._pools.values())
        free = sum(pool.num_free for pool in pools)
        return sum(pool.num_blocks for pool in pools) - free, free

    def shrink(self) -> None:
        """Give the memory of free pages back, as far as they lie at the end."""
        for pool in self._pools.values():
            pool.shrink()


def traced(layout: Layout, buffers: list[mx.array], constants: list[mx.array]) -> Store:
    """A store over the arrays that a step is being compiled for."""
    if isinstance(layout, Contiguous):
        return ContiguousStore(buffers)
    return PagedStore(Pool(layout.block_tokens, buffers), constants[0])
