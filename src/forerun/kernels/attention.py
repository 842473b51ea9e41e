"""Attention of new rows over all keys of one sequence. Knows positions, nothing of caches or layouts."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from forerun.kernels import cpu
from forerun.kernels.cuda_source import is_cuda
from forerun.kernels.difference import difference

BLOCK_KEYS = 256
# Limit for scores in memory at a time, where an operation materialises them: bounds memory, and the time of one device command.
SCORE_BYTES = 1 << 29
_BLOCKED_SCORE_BYTES = 1 << 26
UNSPLIT_ROWS = 8

Attend = Callable[[mx.array, mx.array, mx.array, mx.array, int], mx.array]


def blocked(q: mx.array, keys: mx.array, values: mx.array, positions: mx.array, first: int) -> mx.array:
    """The reference: row-invariant, and independent of the number of keys beyond a row's position.

    q [heads, rows, dim]; keys, values [kv_heads, keys, dim], keys a multiple of BLOCK_KEYS, all finite; positions [rows] int32. Row i sees
    the keys first..positions[i] (its own always). Returns [heads, rows, dim]. Keys are summed in absolute blocks of BLOCK_KEYS, block after
    block in order; a masked key contributes an exact zero.
    """
    return _in_parts(_blocked, _BLOCKED_SCORE_BYTES, q, keys, values, positions, first)


def _in_parts(attend: Attend, max_bytes: int, q: mx.array, keys: mx.array, values: mx.array, positions: mx.array, first: int) -> mx.array:
    """Attention by parts of the rows, so that scores take at most `max_bytes`. Few rows are not split: their step may be compiled."""
    rows, rows_at_once = q.shape[1], max(UNSPLIT_ROWS, max_bytes // (q.shape[0] * keys.shape[1] * q.itemsize))
    if rows <= rows_at_once:
        return attend(q, keys, values, positions, first)
    parts = []
    for start in range(0, rows, rows_at_once):
        span = slice(start, start + rows_at_once)
        parts.append(attend(q[:, span], keys, values, positions[span], first))
        mx.eval(parts[-1])  # else the scores of all parts may exist at once
    return mx.concatenate(parts, axis=1)


def _blocked(q: mx.array, keys: mx.array, values: mx.array, positions: mx.array, first: int) -> mx.array:
    kv_heads, num_keys, dim = keys.shape
    heads, rows, _ = q.shape
    group, blocks = heads // kv_heads, num_keys // BLOCK_KEYS
    block_shape = (kv_heads, blocks, BLOCK_KEYS, dim)
    scores = (q * dim**-0.5).reshape(kv_heads, 1, group * rows, dim) @ keys.reshape(block_shape).swapaxes(-1, -2)
    key_positions = mx.arange(num_keys, dtype=mx.int32).reshape(blocks, 1, 1, BLOCK_KEYS)
    visible = _visible(key_positions, positions[:, None], first)
    scores = mx.where(visible, scores.reshape(kv_heads, blocks, group, rows, BLOCK_KEYS), -mx.inf)
    weights = mx.exp(scores - scores.max(axis=(1, 4), keepdims=True))
    sums = weights.reshape(kv_heads, blocks, group * rows, BLOCK_KEYS) @ values.reshape(block_shape)
    total = weights.sum(axis=-1).sum(axis=1).reshape(heads, rows, 1)
    return sums.sum(axis=1).reshape(heads, rows, dim) / total


def fused(q: mx.array, keys: mx.array, values: mx.array, positions: mx.array, first: int) -> mx.array:
    """The fast version: MLX's own attention. Arguments as in `blocked`, but any number of keys; not row-invariant.

    Where MLX has no kernel for a size (head_dim 256; all on a CPU) it materialises the scores, so rows are split. Not on CUDA, where this
    was not measured: long contexts with head_dim 256 take more memory there than the memory check assumes.
    """
    return _fused(q, keys, values, positions, first) if is_cuda() else _in_parts(_fused, SCORE_BYTES, q, keys, values, positions, first)


def _fused(q: mx.array, keys: mx.array, values: mx.array, positions: mx.array, first: int) -> mx.array:
    mask = _visible(mx.arange(keys.shape[1], dtype=mx.int32), positions[:, None], first)
    return mx.fast.scaled_dot_product_attention(q[None], keys[None], values[None], scale=q.shape[-1] ** -0.5, mask=mask)[0]


def errors(device: mx.Device) -> list[float]:
    """`error` for the heads of real models, one row and many, in short contexts and beyond 8,192 keys, in the device's dtype.

    Empty with the CPU kernels, which attend instead.
    """
    if cpu.extension():
        return []
    shapes = ((8, 1, 1, 256, 9000), (6, 4, 1, 256, 8300), (8, 24, 2, 128, 8200), (8, 40, 2, 64, 700))
    with mx.stream(device):
        return [error(*shape, mx.float32 if device == mx.cpu else mx.bfloat16) for shape in shapes]


def error(heads: int, rows: int, kv_heads: int, dim: int, length: int, dtype: mx.Dtype) -> float:
    """Relative error of `fused` against `blocked` in float32 on random rows; see `difference`."""
    keys = -(-length // BLOCK_KEYS) * BLOCK_KEYS
    shapes = ((heads, rows, dim), (kv_heads, keys, dim), (kv_heads, keys, dim))
    q, k, v = (mx.random.normal(s, key=mx.random.key(i)).astype(dtype) for i, s in enumerate(shapes))
    positions = mx.arange(length - rows, length, dtype=mx.int32)
    actual = fused(q, k, v, positions, 1)
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    return difference([actual], [blocked(q, k, v, positions, 1)])


def _visible(keys: mx.array, rows: mx.array, first: int) -> mx.array:
    if first == 0:
        return keys <= rows
    return (keys <= rows) & (keys >= mx.minimum(first, rows))
