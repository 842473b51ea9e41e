"""The largest values of each row, with a total order. Knows arrays, nothing of tokens."""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels import cpu

BLOCK_VALUES = 64  # the num largest lie in the num blocks with the largest maxima: a small sort instead of one over the row


def largest_ids(values: mx.array, num: int) -> mx.array:
    """Indices [rows, num] uint32 of the `num` largest of each row of `values` [rows, n] float32, descending; of equals the lower first.

    All results are the same by kernel and by array operations, but for rows with a NaN: there they are any distinct indices.
    """
    if num * BLOCK_VALUES < values.shape[1] or num == 1:
        kernels = cpu.extension()
        return kernels.top_k(values, num)[1] if kernels else _of_blocks(values, num)
    return _ranked(values, mx.arange(values.shape[1]), num)


def _of_blocks(values: mx.array, num: int) -> mx.array:
    """`largest_ids` of rows that are much longer than num."""
    rows, size = values.shape
    if num == 1:
        return mx.argmax(values, axis=-1, keepdims=True)
    padded = mx.pad(values, [(0, 0), (0, -size % BLOCK_VALUES)], constant_values=-mx.inf)
    blocks = padded.reshape(rows, -1, BLOCK_VALUES)
    # Ranking blocks by their best value is ranking those values: the num best values cannot lie outside the num best blocks.
    best = largest_ids(mx.max(blocks, axis=-1), num)[..., None]
    near = mx.take_along_axis(blocks, best, axis=1).reshape(rows, -1)
    return _ranked(near, (best * BLOCK_VALUES + mx.arange(BLOCK_VALUES)).reshape(rows, -1), num)


def _ranked(values: mx.array, ids: mx.array, num: int) -> mx.array:
    """The `num` ids with the largest values. Value and id form one integer key: keys are distinct, so ties in the sort do not matter."""
    bits = (values + 0.0).view(mx.int32)  # + 0.0: minus zero equals zero
    order = mx.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(mx.int64)
    keys = mx.left_shift(order, 32) + (0xFFFFFFFF - ids.astype(mx.int64))
    best = mx.sort(mx.topk(keys, num, axis=-1), axis=-1)[..., ::-1]
    return (0xFFFFFFFF - (best & 0xFFFFFFFF)).astype(mx.uint32)


def errors(device: mx.Device) -> list[float]:
    """The share of indices that differ from those of the array operations, among values with ties; empty without the CPU kernels."""
    with mx.stream(device):
        return [_error(num) for num in (1, 20, 300)] if cpu.extension() else []


def _error(num: int) -> float:
    values = mx.round(mx.random.normal((3, 50_000), key=mx.random.key(0)), 2)
    expected = _ranked(values, mx.arange(values.shape[1]), num)
    return float((largest_ids(values, num) != expected).astype(mx.float32).mean())
