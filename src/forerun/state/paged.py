"""Keys and values in pages of `block_tokens` rows that need not lie side by side: a conversation grows and goes page by page.

Pages of all caches come from one pool. Knows no lengths: callers say where.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import mlx.core as mx

from forerun.kernels.numerics import Numerics
from forerun.kernels.paged_attention import Pages, paged_attention
from forerun.kernels.write_rows import put_rows
from forerun.state.contiguous import CAPACITY_STEP_TOKENS, round_up
from forerun.state.host import Host, fetched, host, is_shared, sent
from forerun.state.layout import Paged
from forerun.state.spec import AttentionSpec


class Pool:
    """Pages of all attention layers. `buffers`: [kv_heads, pages * block_tokens, head_dim], keys and values of each layer in turn.

    A page has the same number in every layer. Pages that were given back are taken again first. num_blocks: pages there are, taken or
    free; a number of its own, since whoever asks may be another thread, while a step has the buffers.
    """

    def __init__(self, block_tokens: int, buffers: list[mx.array]) -> None:
        self.block_tokens, self.buffers = block_tokens, buffers
        self.bytes_per_block = sum(a.shape[0] * block_tokens * a.shape[2] * a.itemsize for a in buffers)
        self.num_blocks = int(buffers[0].shape[1]) // block_tokens
        self._free: list[int] = []

    @classmethod
    def empty(cls, specs: Sequence[AttentionSpec], block_tokens: int) -> Pool:
        """A pool without pages. Raises ValueError unless block_tokens divides CAPACITY_STEP_TOKENS."""
        if CAPACITY_STEP_TOKENS % block_tokens:
            raise ValueError(f"a page of {block_tokens} tokens does not divide {CAPACITY_STEP_TOKENS}")
        return cls(block_tokens, [mx.zeros((s.kv_heads, 0, s.head_dim), dtype=getattr(mx, s.dtype)) for s in specs for _ in "kv"])

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def shrink(self) -> None:
        """Give the memory of the free pages at the end back, array by array."""
        free, kept = set(self._free), self.num_blocks
        while kept - 1 in free:
            kept -= 1
        if kept == self.num_blocks:
            return
        self._free, self.num_blocks = [page for page in self._free if page < kept], kept
        for i in range(len(self.buffers)):
            self.buffers[i] = mx.contiguous(self.buffers[i][:, : kept * self.block_tokens])
            mx.eval(self.buffers[i])

    def take(self, num_blocks: int) -> list[int]:
        """Numbers of pages that nobody holds. Only if none are left does the pool grow, by a quarter at least, array by array."""
        missing = num_blocks - len(self._free)
        if missing > 0:
            added = max(missing, self.num_blocks // 4)
            for i in range(len(self.buffers)):
                self.buffers[i] = mx.pad(self.buffers[i], [(0, 0), (0, added * self.block_tokens), (0, 0)])
                mx.eval(self.buffers[i])
            self._free += range(self.num_blocks, self.num_blocks + added)
            self.num_blocks += added
        taken = self._free[:num_blocks]
        del self._free[:num_blocks]
        self._clean(taken)
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Let others have the pages."""
        self._free += blocks

    def _clean(self, blocks: Sequence[int]) -> None:
        """Zeros: whoever held the pages may have been broken by numbers that are not finite, and a masked NaN leaks (0 x NaN)."""
        starts = mx.array(list(blocks), dtype=mx.int32) * self.block_tokens
        at = (starts[:, None] + mx.arange(self.block_tokens, dtype=mx.int32)).reshape(-1)
        for i in range(len(self.buffers)):
            heads, _, dim = self.buffers[i].shape
            self.buffers[i] = put_rows(self.buffers[i], mx.zeros((heads, at.shape[0], dim), dtype=self.buffers[i].dtype), at)
        mx.eval(self.buffers)


class PagedStore:
    """The pages of one cache; see Store. They go back to the pool when the store goes. blocks [pages] int32: which, in order."""

    def __init__(self, pool: Pool, blocks: mx.array) -> None:
        self._pool, self._blocks = pool, blocks

    @classmethod
    def empty(cls, pool: Pool, tokens: int) -> PagedStore:
        """A store with room for `tokens`."""
        store = cls(pool, mx.zeros((0,), dtype=mx.int32))
        store.reserve(round_up(tokens))
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
        return int(self._blocks.shape[0])

    @property
    def capacity(self) -> int:
        return self.num_blocks * self._pool.block_tokens

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self._pool.bytes_per_block

    def reserve(self, tokens: int) -> None:
        """Takes pages, CAPACITY_STEP_TOKENS at a time; no row moves."""
        if tokens > self.capacity:
            wanted = round_up(tokens) // self._pool.block_tokens
            taken = self._pool.take(wanted - self.num_blocks)
            weakref.finalize(self, self._pool.give_back, taken)
            self._blocks = mx.concatenate([self._blocks, mx.array(taken, dtype=mx.int32)])

    def write(self, layer: int, start: int | mx.array, keys: mx.array, values: mx.array) -> None:
        at = self._places(mx.arange(keys.shape[1], dtype=mx.int32) + start)
        for i, rows in ((2 * layer, keys), (2 * layer + 1, values)):
            self.buffers[i] = put_rows(self.buffers[i], rows, at)

    def attend(self, layer: int, q: mx.array, positions: mx.array, stop: int | None, first: int, numerics: Numerics) -> mx.array:
        return paged_attention(q, self._pages(layer), positions, stop, first, numerics)

    def take(self, start: int, stop: int) -> list[mx.array]:
        at = self._places(mx.arange(start, stop, dtype=mx.int32))
        return [mx.take(a, at, axis=1) for a in self.buffers]

    def put(self, start: int, rows: Sequence[mx.array]) -> None:
        at = self._places(mx.arange(start, start + rows[0].shape[1], dtype=mx.int32))
        for i, part in enumerate(rows):
            self.buffers[i] = put_rows(self.buffers[i], part, at)
        mx.eval(self.buffers)

    def rows(self, start: int, stop: int) -> list[Host]:
        gathered = self.take(start, stop)
        if not is_shared():
            return fetched(gathered)
        mx.eval(gathered)
        return [host(a) for a in gathered]

    def fill(self, start: int, rows: Sequence[Host]) -> None:
        self.put(start, [sent(part, a.dtype) for part, a in zip(rows, self.buffers, strict=True)])

    def constants(self) -> list[mx.array]:
        return [self._blocks]

    def _pages(self, layer: int) -> Pages:
        return Pages(self.buffers[2 * layer], self.buffers[2 * layer + 1], self._blocks, self._pool.block_tokens)

    def _places(self, positions: mx.array) -> mx.array:
        return self._pages(0).places(positions)
