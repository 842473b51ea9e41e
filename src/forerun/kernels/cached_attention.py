"""New rows of one sequence over its stored keys and values: writing them, and attention, by the fastest kernel of the device.

q, k, v [rows, heads, dim]; stored rows [kv_heads, capacity, dim], contiguous or in pages. Knows positions, nothing of caches.
"""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels import cpu
from forerun.kernels.cpu.operations import Operations
from forerun.kernels.numerics import Numerics
from forerun.kernels.paged_attention import Pages, has_cuda_kernel, on_cuda, one_page, portable
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


def attention(
    q: mx.array, keys: mx.array, values: mx.array, positions: mx.array, stop: int | None, first: int, numerics: Numerics
) -> mx.array:
    """Each row of q attends to the rows first..positions[i] (its own always). stop: number of stored rows, None in a compiled step.

    Returns [rows, heads, dim].
    """
    kernels = _kernels(keys)
    if kernels:
        return kernels.attention(q, [keys], [values], [None], [q.shape[0]], positions, first, 1)
    by_head = q.swapaxes(0, 1)
    if has_cuda_kernel(by_head, keys):
        return on_cuda(by_head, one_page(keys, values), positions, first).swapaxes(0, 1)
    if stop is not None:
        stop = -(-stop // numerics.key_block) * numerics.key_block
        keys, values = keys[:, :stop], values[:, :stop]
    return numerics.attention(by_head, keys, values, positions, first).swapaxes(0, 1)


def paged_attention(q: mx.array, pages: Pages, positions: mx.array, stop: int | None, first: int, numerics: Numerics) -> mx.array:
    """`attention` over the pages of a sequence."""
    kernels = _kernels(pages.keys)
    if kernels:
        return kernels.attention(q, [pages.keys], [pages.values], [pages.blocks], [q.shape[0]], positions, first, pages.block_tokens)
    by_head = q.swapaxes(0, 1)
    if has_cuda_kernel(by_head, pages.keys):
        return on_cuda(by_head, pages, positions, first).swapaxes(0, 1)
    return portable(by_head, pages, positions, stop, first, numerics).swapaxes(0, 1)


def _kernels(keys: mx.array) -> Operations | None:
    """The CPU kernels if they take such keys [kv_heads, capacity, dim]."""
    return cpu.extension() if keys.shape[2] % 16 == 0 and keys.dtype == mx.float32 else None
