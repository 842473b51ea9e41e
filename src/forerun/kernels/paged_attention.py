"""Attention of a few new rows over the pages of sequences. Knows pools, block tables and positions, nothing of caches.

`portable` gathers the pages and attends to the copy, on any device; `on_cuda` is a kernel that reads each page in place, once for all
query rows of its head, and no page beyond the last row's position. A contiguous buffer is a pool of one page (`one_page`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import mlx.core as mx

from forerun.kernels.cuda_source import is_cuda, kernel
from forerun.kernels.difference import difference
from forerun.kernels.numerics import FAST, Numerics
from forerun.kernels.row_span import starts_of

MAX_ROWS = 8
HEAD_DIMS = (64, 128, 256)
ONE_PAGE_TOKENS = 1 << 30
_MMA_ROWS = 16
_MAX_MMA_TILES = 4
_THREADS = 128
_BLOCKS_TO_FILL = 256  # two thread blocks a multiprocessor of the largest devices


class Pages(NamedTuple):
    """Pools `keys` and `values` [kv_heads, pages * block_tokens, dim]; block table `blocks` [n] int32: the sequence's pages in order."""

    keys: mx.array
    values: mx.array
    blocks: mx.array
    block_tokens: int

    def rows_of(self, positions: mx.array) -> mx.array:
        """The pool rows [n] int32 of these positions [n] int32."""
        return self.blocks[positions // self.block_tokens] * self.block_tokens + positions % self.block_tokens


def one_page(keys: mx.array, values: mx.array) -> Pages:
    """Contiguous keys and values [kv_heads, capacity, dim] as pages."""
    return Pages(keys, values, _first_page(), ONE_PAGE_TOKENS)


def has_cuda_kernel(q: mx.array, keys: mx.array, rows: int) -> bool:
    """Whether the CUDA kernel runs for q [heads, ..., dim] and keys [kv_heads, pool rows, dim] on the default device, with at most `rows`
    rows of each sequence.
    """
    heads, _, dim = q.shape
    is_small = rows <= MAX_ROWS and rows * heads // keys.shape[0] <= _MMA_ROWS * _MAX_MMA_TILES
    is_bf16 = q.dtype == keys.dtype == mx.bfloat16
    return is_small and is_bf16 and dim in HEAD_DIMS and is_cuda()


def portable(q: mx.array, pages: Pages, positions: mx.array, stop: int | None, first: int, numerics: Numerics) -> mx.array:
    """The reference: gather the pages, then `numerics.attention`: same bits as over one buffer. Returns [heads, rows, dim].

    q [heads, rows, dim]; positions [rows] int32, ascending: row i sees the keys first..positions[i] (its own always). stop: number of
    keys; None: the capacity of the block table.
    """
    capacity = pages.blocks.shape[0] * pages.block_tokens
    stop = capacity if stop is None else -(-stop // numerics.key_block) * numerics.key_block
    at = pages.rows_of(mx.arange(stop, dtype=mx.int32))
    return numerics.attention(q, mx.take(pages.keys, at, axis=1), mx.take(pages.values, at, axis=1), positions, first)


def on_cuda(q: mx.array, pages: Pages, positions: mx.array, first: int, spans: Sequence[int]) -> mx.array:
    """The CUDA kernel: bfloat16 in and out, sums in float32. Arguments as `portable`, but of several sequences, whose rows lie end to end:
    spans[j] of them (0 to MAX_ROWS) over the pages `pages.blocks`[j], [sequences, n] int32 ([n] of one). Only if `has_cuda_kernel`.

    The keys up to the last position are split into a fixed number of partitions per key head; a second kernel joins their partial sums.
    """
    heads, rows, dim = q.shape
    kv_heads, most = pages.keys.shape[0], max(spans)
    parts = max(1, _BLOCKS_TO_FILL // kv_heads)
    constants = {"ROWS": most, "HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "TILES": -(-most * heads // kv_heads // _MMA_ROWS)}
    constants |= {"PARTS": parts, "BLOCK_TOKENS": pages.block_tokens, "FIRST": first}
    partial, scale = kernel("paged_attention_partition", ("q", "keys", "values", "blocks", "positions", "starts"), ("partial", "scale"))(
        inputs=[q.swapaxes(0, 1), pages.keys, pages.values, pages.blocks.reshape(len(spans), -1), positions, starts_of(tuple(spans))],
        template=list(constants.items()),
        grid=(parts * _THREADS, kv_heads, len(spans)),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(parts, rows, heads, dim), (parts, rows, heads, 2)],
        output_dtypes=[mx.float32, mx.float32],
    )
    (out,) = kernel("paged_attention_join", ("partial", "scale"), ("out",))(
        inputs=[partial, scale],
        template=[("PARTS", parts), ("DIM", dim)],
        grid=(rows * heads * dim, 1, 1),
        threadgroup=(dim, 1, 1),
        output_shapes=[(rows, heads, dim)],
        output_dtypes=[mx.bfloat16],
    )
    return out.swapaxes(0, 1)


def errors(device: mx.Device) -> list[float]:
    """`error` for shapes of real models; empty where the kernel does not run."""
    with mx.stream(device):
        if not has_cuda_kernel(mx.zeros((2, 1, 64), mx.bfloat16), mx.zeros((1, 1, 64), mx.bfloat16), 1):
            return []
        return [
            error((8, 1, 256), kv_heads=2, block_tokens=64, length=700, first=0),
            error((4, 3, 64), kv_heads=2, block_tokens=16, length=33, first=1),
            error((24, 8, 256), kv_heads=4, block_tokens=256, length=5000, first=1),
            error((32, 5, 128), kv_heads=8, block_tokens=32, length=9000, first=0),
        ]


def error(query_shape: tuple[int, int, int], *, kv_heads: int, block_tokens: int, length: int, first: int) -> float:
    """Relative error of `on_cuda` against `portable` in float32 on random pages in random order; see `difference`."""
    rows, num_blocks = query_shape[1], -(-length // block_tokens)
    pool = (kv_heads, (num_blocks + 3) * block_tokens, query_shape[2])
    order, *randoms = mx.random.split(mx.random.key(length), 4)
    blocks = mx.random.permutation(num_blocks + 3, key=order)[:num_blocks].astype(mx.int32)
    shapes = (query_shape, pool, pool)
    q, keys, values = (mx.random.normal(s, key=k).astype(mx.bfloat16) for s, k in zip(shapes, randoms, strict=True))
    positions = mx.arange(length - rows, length, dtype=mx.int32)
    actual = on_cuda(q, Pages(keys, values, blocks, block_tokens), positions, first, [rows])
    q, keys, values = (x.astype(mx.float32) for x in (q, keys, values))
    expected = portable(q, Pages(keys, values, blocks, block_tokens), positions, length, first, FAST)
    return difference([actual], [expected])


@cache
def _first_page() -> mx.array:
    return mx.zeros((1,), dtype=mx.int32)
