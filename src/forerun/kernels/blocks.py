"""Matrices in GGUF's blocks of quantised weights: products and rows on a CPU; plain, or in MLX's form, elsewhere. Knows no file.

The formats of llama.cpp's ggml-quants.c. A product of a scale and an integer is exact in float32, so a weight is rounded once at most, and
every way to compute it gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from forerun.kernels import cpu
from forerun.kernels.difference import difference
from forerun.kernels.quantised import PackedMatrix, Scheme

PART_WEIGHTS = 1 << 22


class BlockFormat(NamedTuple):
    """num_weights in num_bytes, float16 numbers at the bytes `halves`; `weights` of blocks [n, num_bytes] are [n, num_weights] float32."""

    num_weights: int
    num_bytes: int
    halves: tuple[int, ...]
    weights: Callable[[mx.array], mx.array]

    def dequantise(self, blocks: mx.array) -> mx.array:
        """The matrix [n, k] float32 of `blocks` [n, bytes of a row] uint8."""
        return self.weights(blocks.reshape(-1, self.num_bytes)).reshape(blocks.shape[0], -1)


def has_cpu_kernel() -> bool:
    """Whether `product` and `rows` run on the default device."""
    return cpu.extension() is not None


def product(x: mx.array, blocks: mx.array, name: str) -> mx.array:
    """x [rows, k] float32 times the transposed matrix [n, k] of `blocks` [n, bytes of a row] uint8: [rows, n] float32.

    Only if `has_cpu_kernel`.
    """
    kernels = cpu.extension()
    assert kernels is not None
    return kernels.block_linear(x, blocks, name)


def rows(blocks: mx.array, ids: mx.array, name: str) -> mx.array:
    """Rows `ids` [num] int32 of the matrix of `blocks`, [num, k] float32. Only if `has_cpu_kernel`."""
    kernels = cpu.extension()
    assert kernels is not None
    return kernels.block_rows(blocks, ids, name)


def dequantise(blocks: mx.array, name: str, dtype: mx.Dtype) -> mx.array:
    """The matrix [n, k] of `blocks` in dtype, by parts of its rows: the operations take many times its memory."""
    form = FORMATS[name]
    num = max(1, PART_WEIGHTS * form.num_bytes // (blocks.shape[1] * form.num_weights))
    parts = [form.dequantise(blocks[i : i + num]).astype(dtype) for i in range(0, blocks.shape[0], num)]
    for part in parts:
        mx.eval(part)
    return mx.concatenate(parts)


def packed(blocks: mx.array, name: str) -> PackedMatrix:
    """The same weights packed as `mx.quantize` does: bits of a format in PACKED, groups of 32, scales and biases float16."""
    form, bits = FORMATS[name], PACKED[name]
    each = blocks.reshape(-1, form.num_bytes)
    data, scales = each[:, 2 * len(form.halves) :], _half(each, 0)
    # Eight bits are signed, four are not; without a minimum a zero is the middle of the range.
    integers = (data ^ 128).astype(mx.int32) if bits == 8 else _nibbles(data)
    biases = _half(each, 2) if len(form.halves) > 1 else -(1 << (bits - 1)) * scales
    words = mx.left_shift(integers.astype(mx.uint32).reshape(blocks.shape[0], -1, 32 // bits), mx.arange(0, 32, bits, dtype=mx.uint32))
    halves = [array.astype(mx.float16).reshape(blocks.shape[0], -1) for array in (scales, biases)]
    return PackedMatrix(words.sum(axis=-1), halves[0], halves[1], Scheme("affine", bits, 32))


def errors(device: mx.Device) -> list[float]:
    """Relative errors of `product` for every format, few rows and many; empty where no kernel computes it."""
    with mx.stream(device):
        return [error(num, name) for name in FORMATS for num in (1, 4, 40)] if has_cpu_kernel() else []


def error(num_rows: int, name: str) -> float:
    """Relative error of `product` against the product with the float32 matrix on random rows and blocks; see `difference`."""
    x, blocks = mx.random.normal((num_rows, 1024), key=mx.random.key(0)), random_blocks(name, 200, 1024)
    return difference([product(x, blocks, name)], [x @ FORMATS[name].dequantise(blocks).T])


def random_blocks(name: str, n: int, k: int) -> mx.array:
    """Blocks of a random matrix [n, k] in the format `name` of FORMATS, to test with."""
    form = FORMATS[name]
    num = n * k // form.num_weights
    data = mx.random.randint(0, 256, (num, form.num_bytes), key=mx.random.key(0)).astype(mx.uint8)
    for start in form.halves:
        half = mx.random.normal((num, 1), key=mx.random.key(start + 1)).astype(mx.float16)
        data[:, start : start + 2] = half.view(mx.uint8)
    return data.reshape(n, -1)


def _half(blocks: mx.array, start: int) -> mx.array:
    """The float16 at byte `start` of each block, [n, 1] float32."""
    return mx.contiguous(blocks[:, start : start + 2]).view(mx.float16).astype(mx.float32)


def _fields(data: mx.array, bits: int) -> mx.array:
    """[n, m] uint8 split into fields, the lowest first: [n, 8 / bits, m] int32."""
    shifts = mx.arange(0, 8, bits)[:, None]
    return mx.right_shift(data[:, None].astype(mx.int32), shifts) & ((1 << bits) - 1)


def _bits(data: mx.array) -> mx.array:
    """[n, m] uint8 as [n, 8 * m] bits, the lowest first."""
    return _fields(data, 1).swapaxes(1, 2).reshape(data.shape[0], -1)


def _nibbles(data: mx.array) -> mx.array:
    """[n, m] uint8: all low nibbles, then all high ones, [n, 2 * m]."""
    return _fields(data, 4).reshape(data.shape[0], -1)


def _affine(q: mx.array, scale: mx.array, bias: mx.array) -> mx.array:
    """q * scale + bias: q [n, weights], scale and bias [n, groups]."""
    groups = q.astype(mx.float32).reshape(*scale.shape, -1)
    return (groups * scale[..., None] + bias[..., None]).reshape(q.shape)


def _q8_0(b: mx.array) -> mx.array:
    return mx.contiguous(b[:, 2:]).view(mx.int8).astype(mx.float32) * _half(b, 0)


def _q4_0(b: mx.array) -> mx.array:
    return (_nibbles(b[:, 2:]) - 8).astype(mx.float32) * _half(b, 0)


def _q4_1(b: mx.array) -> mx.array:
    return _affine(_nibbles(b[:, 4:]), _half(b, 0), _half(b, 2))


def _q5_0(b: mx.array) -> mx.array:
    return (_nibbles(b[:, 6:]) + 16 * _bits(b[:, 2:6]) - 16).astype(mx.float32) * _half(b, 0)


def _q5_1(b: mx.array) -> mx.array:
    return _affine(_nibbles(b[:, 8:]) + 16 * _bits(b[:, 4:8]), _half(b, 0), _half(b, 2))


def _scales_and_mins(b: mx.array) -> tuple[mx.array, mx.array]:
    """Scales and minima [n, 8] of Q4_K and Q5_K: six bits each, packed in the 12 bytes from 4 on, times the two at the start."""
    first, second, third = (b[:, start : start + 4].astype(mx.int32) for start in (4, 8, 12))
    scales = mx.concatenate([first & 63, (third & 15) | (mx.right_shift(first, 6) << 4)], axis=1)
    mins = mx.concatenate([second & 63, mx.right_shift(third, 4) | (mx.right_shift(second, 6) << 4)], axis=1)
    return _half(b, 0) * scales.astype(mx.float32), _half(b, 2) * mins.astype(mx.float32)


def _pairs(data: mx.array) -> mx.array:
    """[n, 128] uint8: for each 32 bytes their low nibbles, then their high ones, [n, 256]."""
    return _fields(data.reshape(-1, 32), 4).reshape(data.shape[0], -1)


def _q4_k(b: mx.array) -> mx.array:
    scales, mins = _scales_and_mins(b)
    return _affine(_pairs(b[:, 16:]), scales, -mins)


def _q5_k(b: mx.array) -> mx.array:
    scales, mins = _scales_and_mins(b)
    return _affine(_pairs(b[:, 48:]) + 16 * _fields(b[:, 16:48], 1).reshape(-1, 256), scales, -mins)


def _q6_k(b: mx.array) -> mx.array:
    low = _fields(b[:, :128].reshape(-1, 64), 4).reshape(-1, 256)
    high = _fields(b[:, 128:192].reshape(-1, 32), 2).reshape(-1, 256)
    scales = _half(b, 208) * mx.contiguous(b[:, 192:208]).view(mx.int8).astype(mx.float32)
    return _affine(low + 16 * high - 32, scales, mx.zeros_like(scales))


def _q2_k(b: mx.array) -> mx.array:
    q = _fields(b[:, 16:80].reshape(-1, 32), 2).reshape(-1, 256)
    scales, mins = (b[:, :16] & 15).astype(mx.float32), mx.right_shift(b[:, :16], 4).astype(mx.float32)
    return _affine(q, _half(b, 80) * scales, -_half(b, 82) * mins)


def _q3_k(b: mx.array) -> mx.array:
    q = _fields(b[:, 32:96].reshape(-1, 32), 2).reshape(-1, 256) + 4 * _fields(b[:, :32], 1).reshape(-1, 256) - 4
    six = _fields(b[:, 96:104], 4).reshape(-1, 16) | (_fields(b[:, 104:108], 2).reshape(-1, 16) << 4)
    scales = _half(b, 108) * (six - 32).astype(mx.float32)
    return _affine(q, scales, mx.zeros_like(scales))


FORMATS = {
    "q8_0": BlockFormat(32, 34, (0,), _q8_0),
    "q4_0": BlockFormat(32, 18, (0,), _q4_0),
    "q4_1": BlockFormat(32, 20, (0, 2), _q4_1),
    "q5_0": BlockFormat(32, 22, (0,), _q5_0),
    "q5_1": BlockFormat(32, 24, (0, 2), _q5_1),
    "q2_k": BlockFormat(256, 84, (80, 82), _q2_k),
    "q3_k": BlockFormat(256, 110, (108,), _q3_k),
    "q4_k": BlockFormat(256, 144, (0, 2), _q4_k),
    "q5_k": BlockFormat(256, 176, (0, 2), _q5_k),
    "q6_k": BlockFormat(256, 210, (208,), _q6_k),
}
PACKED = {"q8_0": 8, "q4_0": 4, "q4_1": 4}  # bits of formats that are affine groups of 32, as MLX has them
