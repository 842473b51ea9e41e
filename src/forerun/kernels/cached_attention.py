"""New rows over the stored keys and values of their sequences: writing them, and attention, by the fastest kernel of the device.

q, k, v [rows, heads, dim]; stored rows [kv_heads, capacity, dim], contiguous or in pages. Knows positions, nothing of caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from forerun.kernels import attention as reference
from forerun.kernels import cpu
from forerun.kernels.cpu.operations import Operations
from forerun.kernels.difference import difference
from forerun.kernels.numerics import EXACT, Numerics
from forerun.kernels.paged_attention import Pages, has_cuda_kernel, on_cuda, one_page, portable
from forerun.kernels.row_span import RowSpan, joined_rows, split_rows
from forerun.kernels.write_rows import put_rows, write_rows


def write(keys: mx.array, values: mx.array, k: mx.array, v: mx.array, start: int | mx.array, positions: mx.array) -> list[mx.array]:
    """`keys` and `values` with the rows k and v at `positions` [rows] int32, which begin at `start` (an array if traced).

    In place if nobody else holds the buffers.
    """
    kernels = _kernels(keys)
    if kernels:
        return list(kernels.write_rows(keys, values, k, v, positions))
    return [write_rows(buffer, rows.swapaxes(0, 1), start) for buffer, rows in ((keys, k), (values, v))]


def write_pages(pages: Pages, k: mx.array, v: mx.array, positions: mx.array) -> list[mx.array]:
    """The pool's keys and values with the rows k and v at these positions of the sequence. In place if nobody else holds the buffers."""
    kernels, at = _kernels(pages.keys), pages.rows_of(positions)
    if kernels:
        return list(kernels.write_rows(pages.keys, pages.values, k, v, at))
    return [put_rows(buffer, rows.swapaxes(0, 1), at) for buffer, rows in ((pages.keys, k), (pages.values, v))]


class StoredRows(NamedTuple):
    """Keys and values of one sequence: [kv_heads, capacity, dim], or pools with the sequence's block table `blocks` [n] int32."""

    keys: mx.array
    values: mx.array
    blocks: mx.array | None = None
    block_tokens: int = 1

    def pages(self) -> Pages:
        """The same as pages."""
        return one_page(self.keys, self.values) if self.blocks is None else Pages(*self[:2], self.blocks, self.block_tokens)


def attention(q: mx.array, stored: Sequence[StoredRows], spans: Sequence[RowSpan], first: int, numerics: Numerics) -> mx.array:
    """Each row of q [rows, heads, dim] attends to the rows first..position (its own always) of its own sequence.

    The new rows of several sequences lie end to end; sequence j has stored[j] and spans[j]. Returns [rows, heads, dim].
    """
    kernels = _kernels(stored[0].keys)
    if kernels is None:
        parts = split_rows(q, [span.num for span in spans])
        return joined_rows([_of_one(*each, first, numerics) for each in zip(parts, stored, spans, strict=True)])
    keys, values, blocks, _ = zip(*stored, strict=True)
    positions = joined_rows([span.positions for span in spans])
    return kernels.attention(q, keys, values, blocks, [span.num for span in spans], positions, first, _page_tokens(stored))


def _page_tokens(stored: Sequence[StoredRows]) -> int:
    """The size of all pages, 1 if there are none. Raises ValueError: the CPU kernel takes one size."""
    sizes = {rows.block_tokens for rows in stored if rows.blocks is not None} or {1}
    if len(sizes) > 1:
        raise ValueError(f"pages of {' and '.join(map(str, sorted(sizes)))} tokens in one pass")
    return sizes.pop()


def attention_in_one_pool(q: mx.array, pages: Pages, positions: mx.array, spans: Sequence[int], first: int) -> mx.array:
    """`attention` of several sequences over `pages.blocks` [sequences, n] of one pool, in one launch; only where the kernel runs."""
    return on_cuda(q.swapaxes(0, 1), pages, positions, first, spans).swapaxes(0, 1)


def _of_one(q: mx.array, stored: StoredRows, span: RowSpan, first: int, numerics: Numerics) -> mx.array:
    """`attention` of one sequence without the CPU kernels."""
    by_head, pages, stop = q.swapaxes(0, 1), stored.pages(), span.stop
    if has_cuda_kernel(by_head, stored.keys, span.num):
        return on_cuda(by_head, pages, span.positions, first, [span.num]).swapaxes(0, 1)
    if stored.blocks is not None:
        return portable(by_head, pages, span.positions, stop, first, numerics).swapaxes(0, 1)
    stop = stop if stop is None else -(-stop // numerics.key_block) * numerics.key_block
    keys, values = stored.keys[:, :stop], stored.values[:, :stop]
    return numerics.attention(by_head, keys, values, span.positions, first).swapaxes(0, 1)


def _kernels(keys: mx.array) -> Operations | None:
    """The CPU kernels if they take such keys [kv_heads, capacity, dim]."""
    return cpu.extension() if keys.shape[2] % 16 == 0 and keys.dtype == mx.float32 else None


def errors(device: mx.Device) -> list[float]:
    """`error` for the heads of real models, one row and many, in short contexts and long; empty without the CPU kernels."""
    with mx.stream(device):
        shapes = ((1, 8, 2, 256, 9000), (4, 8, 2, 256, 700), (1, 4, 2, 64, 700), (70, 32, 8, 128, 1100), (5, 9, 3, 64, 5000))
        return [error(*shape, block_tokens) for shape in shapes for block_tokens in (0, 32)] if cpu.extension() else []


def error(rows: int, heads: int, kv_heads: int, dim: int, length: int, block_tokens: int) -> float:
    """Relative error of the CPU's writes and attention, over pages if block_tokens is not 0, against the reference on random rows."""
    capacity = -(-length // reference.BLOCK_KEYS) * reference.BLOCK_KEYS
    shapes = ((rows, heads, dim), (kv_heads, capacity, dim), (kv_heads, capacity, dim))
    q, keys, values = (mx.random.normal(s, key=mx.random.key(i)) for i, s in enumerate(shapes))
    positions, k, v = mx.arange(length - rows, length, dtype=mx.int32), keys[:, :rows].swapaxes(0, 1), values[:, :rows].swapaxes(0, 1)
    expected_keys, expected_values = (put_rows(x, new.swapaxes(0, 1), positions) for x, new in ((keys, k), (values, v)))
    expected = reference.blocked(q.swapaxes(0, 1), expected_keys, expected_values, positions, 1).swapaxes(0, 1)
    span = RowSpan(length - rows, positions)
    if not block_tokens:
        keys, values = write(keys, values, k, v, length - rows, positions)
        return difference([attention(q, [StoredRows(keys, values)], [span], 1, EXACT)], [expected])
    blocks = mx.random.permutation(capacity // block_tokens, key=mx.random.key(3)).astype(mx.int32)
    at = mx.argsort(Pages(keys, values, blocks, block_tokens).rows_of(mx.arange(capacity, dtype=mx.int32)))
    pages = Pages(mx.take(keys, at, axis=1), mx.take(values, at, axis=1), blocks, block_tokens)
    keys, values = write_pages(pages, k, v, positions)
    return difference([attention(q, [StoredRows(keys, values, blocks, block_tokens)], [span], 1, EXACT)], [expected])
