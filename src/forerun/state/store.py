"""The storage of one cache's keys and values, in any layout; and the arena that allocates stores.

Knows rows and attention layers; nothing of lengths, snapshots or recurrent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from forerun.kernels.cached_attention import StoredRows
from forerun.kernels.row_span import RowSpan
from forerun.state.contiguous import ContiguousStore
from forerun.state.host import Host
from forerun.state.layout import Contiguous, Layout
from forerun.state.paged import PagedStore, Pool, tables
from forerun.state.spec import StateSpec


class Store(Protocol):
    """Rows of all attention layers of one sequence. All rows are always finite: a masked NaN would leak (0 x NaN)."""

    buffers: list[mx.array]

    @property
    def layout(self) -> Layout:
        """The layout that the rows actually have."""

    @property
    def capacity(self) -> int:
        """Rows that fit."""

    @property
    def num_blocks(self) -> int:
        """Pages in use, 0 without pages."""

    @property
    def num_bytes(self) -> int:
        """Bytes occupied; of what several stores share, an equal part."""

    @property
    def is_lost(self) -> bool:
        """Whether the rows are gone: another cache's pass failed, and left the memory that they share unusable."""

    def recover(self) -> None:
        """After a failed pass of this cache: see to it that others can use the memory that they share with it, or are lost."""

    def reserve(self, tokens: int) -> None:
        """Grow to hold `tokens` rows."""

    def fork(self, stop: int, tokens: int) -> Store:
        """A new store in the same layout with the rows before `stop` that holds `tokens`, made on the device. Both may be written from
        `stop` on; before rows below that are written again, `own` them. If it fails, no memory stays allocated.
        """

    def own(self, start: int) -> None:
        """Make the rows from `start` on this store's alone, to be written. Their values are lost where they were shared."""

    def write(self, layer: int, span: RowSpan, keys: mx.array, values: mx.array) -> None:
        """Write rows [n, kv_heads, head_dim] of attention layer `layer`, in place."""

    def stored(self, layer: int) -> StoredRows:
        """The rows of attention layer `layer`."""

    def take(self, start: int, stop: int) -> list[mx.array]:
        """Keys and values [kv_heads, stop - start, head_dim] of each layer, in the order of a segment. Not evaluated."""

    def put(self, start: int, rows: Sequence[mx.array]) -> None:
        """Write such rows at `start`, and evaluate."""

    def rows(self, start: int, stop: int) -> list[Host]:
        """Like `take`, as host arrays; invalid once the store has changed."""

    def fill(self, start: int, rows: Sequence[Host]) -> None:
        """Like `put`, of host arrays."""

    def constants(self) -> list[mx.array]:
        """Arrays besides `buffers` that a compiled step reads and does not change."""


class Arena:
    """Allocates stores for caches of one spec. There is one page pool per page size, shared by all caches."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec
        self._pools: dict[int, Pool] = {}

    def store(self, layout: Layout, tokens: int) -> Store:
        """An empty store in `layout` that holds `tokens`."""
        if isinstance(layout, Contiguous):
            return ContiguousStore.empty(self.spec.attention, tokens)
        pool = self._pools.get(layout.block_tokens)
        if pool is None or pool.is_lost:
            self._pools[layout.block_tokens] = Pool.empty(self.spec.attention, layout.block_tokens)
        return PagedStore.empty(self._pools[layout.block_tokens], tokens)

    @property
    def num_blocks(self) -> tuple[int, int]:
        """Pages of all pools: used by caches, and free."""
        pools = list(self._pools.values())
        free = sum(pool.num_free for pool in pools)
        return sum(pool.num_blocks for pool in pools) - free, free

    def shrink(self) -> None:
        """Release the memory of the free pages at the end of each pool."""
        for pool in self._pools.values():
            pool.shrink()


def traced_stores(layout: Layout, buffers: list[mx.array], constants: Sequence[mx.array]) -> list[Store]:
    """Stores over the arrays of a step that is being traced: one contiguous one, or of one pool as many as there are tables."""
    if isinstance(layout, Contiguous):
        return [ContiguousStore(buffers)]
    pool = Pool(layout.block_tokens, buffers)
    return [PagedStore(pool, [], table) for table in constants]


def are_in_one_pool(stores: Sequence[Store]) -> bool:
    """Whether all rows are in pages of one pool."""
    return all(isinstance(store, PagedStore) for store in stores) and len({id(store.buffers) for store in stores}) == 1


def constants_of(stores: Sequence[Store]) -> list[mx.array]:
    """Arrays besides the buffers that a compiled step over these stores reads and does not change: of each, or tables of one length."""
    paged = [store for store in stores if isinstance(store, PagedStore)]
    return tables(paged) if len(paged) == len(stores) > 1 else [array for store in stores for array in store.constants()]
