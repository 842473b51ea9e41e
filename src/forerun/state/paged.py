"""Keys and values in pages of `block_tokens` rows that need not be adjacent: a conversation grows and is freed page by page.

Pages of all caches come from one pool. Knows no lengths: callers pass positions.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence

import mlx.core as mx

from forerun.kernels.cached_attention import StoredRows, attention_in_one_pool, write_pages
from forerun.kernels.cuda_source import is_cuda
from forerun.kernels.paged_attention import MAX_ROWS, Pages
from forerun.kernels.row_span import RowSpan
from forerun.kernels.write_rows import put_rows
from forerun.state.contiguous import CAPACITY_STEP_TOKENS, capacity_for, round_up
from forerun.state.host import Host, copy_to_host, host, is_shared, to_device
from forerun.state.layout import Paged
from forerun.state.spec import AttentionSpec

log = logging.getLogger(__name__)


class Pool:
    """Pages of all attention layers. `buffers`: [kv_heads, pages * block_tokens, head_dim], keys and values of each layer in turn.

    A page has the same number in every layer. Freed pages are allocated first. Several stores may hold one page: it is free again when the
    last one frees it. num_blocks: all pages, used or free; stored separately, since another thread may ask while a step holds the buffers.
    is_lost: a failed pass left buffers that cannot be evaluated; no cache in this pool has rows any more.
    """

    def __init__(self, block_tokens: int, buffers: list[mx.array]) -> None:
        self.block_tokens, self.buffers = block_tokens, buffers
        self.bytes_per_block = sum(a.shape[0] * block_tokens * a.shape[2] * a.itemsize for a in buffers)
        self.num_blocks = int(buffers[0].shape[1]) // block_tokens
        self._free: list[int] = []
        self._num_holders: dict[int, int] = {}
        self.is_lost = False

    @classmethod
    def empty(cls, specs: Sequence[AttentionSpec], block_tokens: int) -> Pool:
        """A pool without pages. Raises ValueError unless block_tokens divides CAPACITY_STEP_TOKENS."""
        if CAPACITY_STEP_TOKENS % block_tokens:
            raise ValueError(f"a page of {block_tokens} tokens does not divide {CAPACITY_STEP_TOKENS}")
        return cls(block_tokens, [mx.zeros((s.kv_heads, 0, s.head_dim), dtype=getattr(mx, s.dtype)) for s in specs for _ in "kv"])

    @property
    def num_free(self) -> int:
        """Pages that no store uses."""
        return len(self._free)

    def shrink(self) -> None:
        """Release the memory of the free pages at the end, array by array."""
        free, num_blocks = set(self._free), self.num_blocks
        while num_blocks - 1 in free:
            num_blocks -= 1
        if num_blocks == self.num_blocks:
            return
        self._free, self.num_blocks = [page for page in self._free if page < num_blocks], num_blocks
        for i in range(len(self.buffers)):
            self.buffers[i] = mx.contiguous(self.buffers[i][:, : num_blocks * self.block_tokens])
            mx.eval(self.buffers[i])

    def allocate(self, num_blocks: int) -> list[int]:
        """Numbers of free pages, zeroed. The pool grows only if too few are free: by at least a quarter, to a capacity of the series that
        all caches share (see capacity_for), array by array.
        """
        missing = num_blocks - len(self._free)
        if missing > 0:
            wanted = self.num_blocks + max(missing, self.num_blocks // 4)
            added = capacity_for(wanted * self.block_tokens) // self.block_tokens - self.num_blocks
            for i in range(len(self.buffers)):
                rows = (self.num_blocks + added) * self.block_tokens
                grown = mx.pad(self.buffers[i], [(0, 0), (0, max(0, rows - self.buffers[i].shape[1])), (0, 0)])
                mx.eval(grown)
                self.buffers[i] = grown
                del grown
            self._free += range(self.num_blocks, self.num_blocks + added)
            self.num_blocks += added
        allocated = self._free[:num_blocks]
        self._clear(allocated)
        del self._free[:num_blocks]
        self._num_holders |= dict.fromkeys(allocated, 1)
        return allocated

    def share(self, blocks: Sequence[int]) -> None:
        """Count one more holder of each of these pages."""
        for block in blocks:
            self._num_holders[block] += 1

    def is_shared(self, block: int) -> bool:
        """Whether several stores hold the page."""
        return self._num_holders[block] > 1

    def free(self, blocks: Sequence[int]) -> None:
        """Count one holder less of each of these pages; those without one are free."""
        for block in () if self.is_lost else blocks:
            self._num_holders[block] -= 1
            if not self._num_holders[block]:
                del self._num_holders[block]
                self._free.append(block)

    def bytes_of(self, blocks: Sequence[int]) -> int:
        """Bytes of these pages; each holder of a shared page counts an equal part of it."""
        return round(self.bytes_per_block * sum(1 / self._num_holders.get(block, 1) for block in blocks))

    def evaluate(self) -> None:
        """Evaluate the buffers. Raises what MLX raises, after `recover`."""
        try:
            mx.eval(self.buffers)
        except BaseException:
            self.recover()
            raise

    def recover(self) -> None:
        """After a failure: the rows of other caches stay if the buffers, which may depend on what failed, can be evaluated; else all is
        lost.
        """
        try:
            mx.eval(self.buffers)
        except Exception as error:  # noqa: BLE001 - whatever MLX raises
            log.warning("the pages of all conversations are lost with a failed step: %s", error)
            self.is_lost, self.buffers, self._free, self.num_blocks = True, [], [], 0
            self._num_holders.clear()

    def _clear(self, blocks: Sequence[int]) -> None:
        """Write zeros: the pages may hold numbers that are not finite from a broken cache, and a masked NaN leaks (0 x NaN)."""
        starts = mx.array(list(blocks), dtype=mx.int32) * self.block_tokens
        at = (starts[:, None] + mx.arange(self.block_tokens, dtype=mx.int32)).reshape(-1)
        for i in range(len(self.buffers)):
            heads, _, dim = self.buffers[i].shape
            self.buffers[i] = put_rows(self.buffers[i], mx.zeros((heads, at.shape[0], dim), dtype=self.buffers[i].dtype), at)
        self.evaluate()


class PagedStore:
    """The pages of one cache; see Store. They are freed with the store. blocks: page numbers in order. table [pages] int32: the same, for
    a capacity of the series that all caches share, so that a compiled step is traced once for each; beyond `blocks` it repeats the first
    page, whose rows are masked there.

    A page may be shared with other stores if it is full of rows that no store writes again; see `fork` and `own`.
    """

    def __init__(self, pool: Pool, blocks: list[int], table: mx.array) -> None:
        self._pool, self._blocks, self._table = pool, blocks, table

    @classmethod
    def empty(cls, pool: Pool, tokens: int) -> PagedStore:
        """A store that holds `tokens`."""
        return cls._of(pool, [], round_up(tokens))

    @classmethod
    def _of(cls, pool: Pool, blocks: list[int], tokens: int) -> PagedStore:
        """A store of these pages, of which it is a holder already, and of more until it holds `tokens`."""
        store = cls(pool, blocks, mx.zeros((0,), dtype=mx.int32))
        weakref.finalize(store, pool.free, blocks)
        store._tabulate()
        store.reserve(tokens)
        return store

    @property
    def buffers(self) -> list[mx.array]:
        """The pool's arrays, which all stores of the pool share."""
        return self._pool.buffers

    @buffers.setter
    def buffers(self, buffers: list[mx.array]) -> None:
        self._pool.buffers = buffers

    @property
    def layout(self) -> Paged:
        return Paged(self._pool.block_tokens)

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def capacity(self) -> int:
        return self.num_blocks * self._pool.block_tokens

    @property
    def num_bytes(self) -> int:
        return self._pool.bytes_of(self._blocks)

    def reserve(self, tokens: int) -> None:
        """Allocate pages, CAPACITY_STEP_TOKENS at a time; no row moves."""
        if tokens > self.capacity:
            wanted = round_up(tokens) // self._pool.block_tokens
            self._blocks += self._pool.allocate(wanted - self.num_blocks)
            self._tabulate()

    def fork(self, stop: int, tokens: int) -> PagedStore:
        """Shares the full pages before `stop`, and copies the rows of the last one if it is not full."""
        start = stop - stop % self._pool.block_tokens
        shared, rows = self._blocks[: start // self._pool.block_tokens], self._evaluated(start, stop)
        self._pool.share(shared)
        store = self._of(self._pool, shared, max(stop, tokens))
        if stop > start:
            store.put(start, rows)
        return store

    def own(self, start: int) -> None:
        """Replaces the shared pages from `start` on; copies the rows before `start` in the first of them."""
        first = start // self._pool.block_tokens
        shared = [i for i in range(first, len(self._blocks)) if self._pool.is_shared(self._blocks[i])]
        if not shared:
            return
        page_start = first * self._pool.block_tokens
        rows, fresh = self._evaluated(page_start, start), self._pool.allocate(len(shared))
        self._pool.free([self._blocks[i] for i in shared])
        for i, block in zip(shared, fresh, strict=True):
            self._blocks[i] = block
        self._tabulate()
        if start > page_start:
            self.put(page_start, rows)

    def _tabulate(self) -> None:
        padding = capacity_for(self.capacity) // self._pool.block_tokens - self.num_blocks
        self._table = mx.array(self._blocks + self._blocks[:1] * padding, dtype=mx.int32)

    def write(self, layer: int, span: RowSpan, keys: mx.array, values: mx.array) -> None:
        self.buffers[2 * layer : 2 * layer + 2] = write_pages(self._pages(layer), keys, values, span.positions)

    def stored(self, layer: int) -> StoredRows:
        return StoredRows(*self._pages(layer))

    def take(self, start: int, stop: int) -> list[mx.array]:
        at = self._rows_of(mx.arange(start, stop, dtype=mx.int32))
        return [mx.take(a, at, axis=1) for a in self.buffers]

    def put(self, start: int, rows: Sequence[mx.array]) -> None:
        at = self._rows_of(mx.arange(start, start + rows[0].shape[1], dtype=mx.int32))
        for i, part in enumerate(rows):
            self.buffers[i] = put_rows(self.buffers[i], part, at)
        self._pool.evaluate()

    def rows(self, start: int, stop: int) -> list[Host]:
        gathered = self.take(start, stop)
        if not is_shared():
            return copy_to_host(gathered)
        mx.eval(gathered)
        return [host(a) for a in gathered]

    def fill(self, start: int, rows: Sequence[Host]) -> None:
        self.put(start, [to_device(part, a.dtype) for part, a in zip(rows, self.buffers, strict=True)])

    @property
    def is_lost(self) -> bool:
        return self._pool.is_lost

    def recover(self) -> None:
        self._pool.recover()

    def constants(self) -> list[mx.array]:
        return [self._table]

    @property
    def pool(self) -> Pool:
        """Where its pages are."""
        return self._pool

    def table(self, num_pages: int) -> mx.array:
        """Its page numbers in order, [num_pages] int32, at least as many as it has; beyond them the first is repeated."""
        if self._table.shape[0] != num_pages:
            self._table = mx.array(self._blocks + self._blocks[:1] * (num_pages - self.num_blocks), dtype=mx.int32)
        return self._table

    def _evaluated(self, start: int, stop: int) -> list[mx.array]:
        """`take`, evaluated: rows that still refer to the pool's arrays would have the next write copy these whole."""
        rows = self.take(start, stop)
        mx.eval(rows)
        return rows

    def _pages(self, layer: int) -> Pages:
        return Pages(self.buffers[2 * layer], self.buffers[2 * layer + 1], self._table, self._pool.block_tokens)

    def _rows_of(self, positions: mx.array) -> mx.array:
        return self._pages(0).rows_of(positions)


class PoolPass:
    """A pass over several caches of one pool: rows of all are written and attended to by one operation each.

    tables [sequences, pages] int32; positions [rows] int32 of the new rows, spans[j] of sequence j.
    """

    def __init__(self, pool: Pool, tables: mx.array, spans: Sequence[int], positions: mx.array) -> None:
        self._pool, self._tables, self._spans, self._positions = pool, tables, spans, positions
        owners = mx.array([j for j, n in enumerate(spans) for _ in range(n)], dtype=mx.int32)
        size = pool.block_tokens
        self._at = tables[owners, positions // size] * size + positions % size

    @classmethod
    def of(cls, stores: Sequence[object], spans: Sequence[int], positions: mx.array) -> PoolPass | None:
        """None unless there are several stores in one pool, and a kernel that takes them together."""
        if len(stores) == 1 or max(spans) > MAX_ROWS or not is_cuda():
            return None
        paged = [store for store in stores if isinstance(store, PagedStore)]
        if len(paged) < len(stores) or len({id(store.pool) for store in paged}) > 1:
            return None
        return cls(paged[0].pool, mx.stack(tables(paged)), spans, positions)

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array, first: int) -> mx.array:
        """Write k and v [rows, kv_heads, dim]; then each row of q [rows, heads, dim] attends as in `View.attend`."""
        buffers = self._pool.buffers
        for i, rows in ((2 * layer, k), (2 * layer + 1, v)):
            buffers[i] = put_rows(buffers[i], rows.swapaxes(0, 1), self._at)
        pages = Pages(buffers[2 * layer], buffers[2 * layer + 1], self._tables, self._pool.block_tokens)
        return attention_in_one_pool(q, pages, self._positions, self._spans, first)


def tables(stores: Sequence[PagedStore]) -> list[mx.array]:
    """The page tables of stores in one pass, of one length."""
    num_pages = max(store.constants()[0].shape[0] for store in stores)
    return [store.table(num_pages) for store in stores]
