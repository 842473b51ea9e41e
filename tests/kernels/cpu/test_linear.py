"""Products of the CPU extension: bits of the sum in sixteen lanes, for every number of rows and threads, instruction set and format."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.cpu import lanes
from tests.kernels.cpu.cases import DTYPES, matrix, on_every_set

_cpu: Any = pytest.importorskip("forerun._cpu")


SIZES = st.sampled_from([1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 32, 64, 65, 127, 130])
INNER = st.sampled_from([1, 15, 16, 17, 33, 64, 256, 500, 512, 513, 528, 1040, 2056])
ROWS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 18, 50, 96, 97, 200])


@given(SIZES, INNER, st.sampled_from(DTYPES), st.integers(1, 20))
def test_the_sum_in_sixteen_lanes(n: int, k: int, dtype: mx.Dtype, rows: int) -> None:
    x, w = matrix(rows, k), matrix(n, k, seed=1).astype(dtype)
    expected = lanes.product(np.array(x), np.array(w.astype(mx.float32)))
    for y in on_every_set(lambda: _cpu.linear(x, w)):
        np.testing.assert_array_equal(y, expected)


@given(SIZES, INNER, st.sampled_from(DTYPES), ROWS, st.integers(1, 4))
def test_a_row_has_the_bits_it_has_alone(n: int, k: int, dtype: mx.Dtype, rows: int, threads: int) -> None:
    x, w = matrix(rows, k), matrix(n, k, seed=1).astype(dtype)
    alone = [np.array(_cpu.linear(x[r : r + 1], w)) for r in range(rows)]
    expected = np.concatenate([np.zeros((0, n), np.float32), *alone])
    _cpu.set_num_threads(threads)
    for y in on_every_set(lambda: _cpu.linear(x, w)):
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_close_to_float64_at_real_sizes(dtype: mx.Dtype) -> None:
    x, w = matrix(130, 4096), matrix(300, 4096, seed=1).astype(dtype)
    expected = np.array(x).astype(np.float64) @ np.array(w.astype(mx.float32)).T.astype(np.float64)
    np.testing.assert_allclose(np.array(_cpu.linear(x, w)), expected, atol=3e-4)


def test_every_float16_is_widened_exactly() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    for y in on_every_set(lambda: _cpu.linear(mx.ones((1, 1)), mx.array(halves[:, None]))):
        np.testing.assert_array_equal(y[0], halves.astype(np.float32))


def affine(packed: mx.array, scales: mx.array, biases: mx.array, bits: int) -> mx.array:
    """The float32 matrix fma(q, scale, bias), in NumPy."""
    bytes_ = np.array(packed).view(np.uint8)
    q = bytes_ if bits == 8 else np.stack([bytes_ & 15, bytes_ >> 4], axis=-1).reshape(len(bytes_), -1)
    group = q.shape[1] // scales.shape[1]
    scale, bias = (np.repeat(np.array(a.astype(mx.float32)), group, axis=1) for a in (scales, biases))
    return mx.array(lanes.fma(q.astype(np.float32), scale, bias))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 30])
def test_quantised_weights_give_the_bits_of_the_matrix_they_stand_for(bits: int, group: int, dtype: mx.Dtype, rows: int) -> None:
    n, k = 21, 640
    x, packed = matrix(rows, k), mx.quantize(matrix(n, k, seed=1).astype(dtype), group_size=group, bits=bits)
    expected = np.array(_cpu.linear(x, affine(*packed, bits)))
    for y in on_every_set(lambda: _cpu.quantised_linear(x, *packed, bits, group)):
        np.testing.assert_array_equal(y, expected)


def test_the_reference_matrix_is_that_of_mlx() -> None:
    packed = mx.quantize(matrix(8, 128), group_size=32, bits=4)
    np.testing.assert_allclose(np.array(affine(*packed, 4)), np.array(mx.dequantize(*packed, group_size=32, bits=4)), atol=1e-6)


@pytest.mark.parametrize("rows", [5, 40])
def test_strided_inputs(rows: int) -> None:
    x, w = matrix(96, 2 * rows).T[::2], matrix(2 * 96, 33).T[:, ::2]
    np.testing.assert_array_equal(np.array(_cpu.linear(x, w)), np.array(_cpu.linear(mx.array(np.array(x)), mx.array(np.array(w)))))


def test_compiled_for_any_number_of_rows() -> None:
    w, packed = matrix(40, 64), mx.quantize(matrix(40, 64), group_size=32)
    compiled = mx.compile(lambda x: (_cpu.linear(x, w), _cpu.quantised_linear(x, *packed, 4, 32)), shapeless=True)
    for rows in (1, 4, 30):
        x = matrix(rows, 64, seed=rows)
        for y, expected in zip(compiled(x), (_cpu.linear(x, w), _cpu.quantised_linear(x, *packed, 4, 32)), strict=True):
            np.testing.assert_array_equal(np.array(y), np.array(expected))


@pytest.mark.parametrize(
    "arguments",
    [
        (mx.zeros((2, 32)), mx.zeros((2, 31))),
        (mx.zeros((2, 32), mx.bfloat16), mx.zeros((2, 32))),
        (mx.zeros((2, 32)), mx.zeros((2, 32), mx.int32)),
        (mx.zeros((32,)), mx.zeros((2, 32))),
    ],
    ids=["k", "dtype of x", "dtype of w", "shape of x"],
)
def test_wrong_arguments(arguments: tuple[mx.array, mx.array]) -> None:
    with pytest.raises(ValueError, match="linear"):
        _cpu.linear(*arguments)
