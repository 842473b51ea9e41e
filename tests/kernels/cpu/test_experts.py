"""Products of rows with the matrices of their experts have the bits of products one by one."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.cpu.cases import DTYPES, matrix, on_every_set

_cpu: Any = pytest.importorskip("forerun._cpu")


EXPERTS = 5


def chosen_experts(rows: int, chosen: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(EXPERTS)[:chosen] for _ in range(rows)] or [np.zeros(chosen)]).astype(np.int32)[:rows]


def one_by_one(x: mx.array, w: mx.array, experts: np.ndarray) -> np.ndarray:
    rows, chosen = experts.shape
    x = mx.broadcast_to(x, (rows, chosen, x.shape[2]))
    y = np.zeros((rows, chosen, w.shape[1]), np.float32)
    for r, j in np.ndindex(rows, chosen):
        y[r, j] = np.array(_cpu.linear(x[r, j : j + 1], w[int(experts[r, j])]))[0]
    return y


@given(
    st.sampled_from([0, 1, 2, 5, 14, 40, 70]),
    st.integers(1, EXPERTS),
    st.sampled_from([1, 3, 16, 70]),
    st.sampled_from([1, 16, 40, 530]),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(1, 3),
)
def test_plain_weights(rows: int, chosen: int, n: int, k: int, dtype: mx.Dtype, is_shared: bool, threads: int) -> None:
    x, w = matrix(rows, 1 if is_shared else chosen, k), matrix(EXPERTS, n, k, seed=1).astype(dtype)
    experts = chosen_experts(rows, chosen, rows)
    _cpu.set_num_threads(threads)
    expected = one_by_one(x, w, experts)
    for y in on_every_set(lambda: _cpu.linear_of_experts(x, w, mx.array(experts))):
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("rows", [1, 3, 60])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights(rows: int, bits: int) -> None:
    x, packed = matrix(rows, 1, 128), mx.quantize(matrix(EXPERTS, 20, 128, seed=1), group_size=32, bits=bits)
    experts = mx.array(chosen_experts(rows, 2, 0))
    y = _cpu.quantised_linear_of_experts(x, *packed, experts.astype(mx.uint32), bits, 32)
    for r, j in np.ndindex(rows, 2):
        of_expert = (each[experts[r, j]] for each in packed)
        np.testing.assert_array_equal(np.array(y[r, j]), np.array(_cpu.quantised_linear(x[r], *of_expert, bits, 32)[0]))


def test_compiled_for_any_number_of_rows() -> None:
    w = matrix(EXPERTS, 12, 32)
    compiled = mx.compile(lambda x, experts: _cpu.linear_of_experts(x, w, experts), shapeless=True)
    for rows in (2, 50):
        x, experts = matrix(rows, 1, 32), chosen_experts(rows, 2, 0)
        np.testing.assert_array_equal(np.array(compiled(x, mx.array(experts))), one_by_one(x, w, experts))


@pytest.mark.parametrize("chosen", [2, 3])
def test_wrong_arguments(chosen: int) -> None:
    with pytest.raises(ValueError, match="linear_of_experts"):
        _cpu.linear_of_experts(mx.zeros((4, chosen, 32)), mx.zeros((EXPERTS, 8, 32)), mx.zeros((4, 4), mx.int32))
