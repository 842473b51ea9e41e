"""log_softmax and top_k of the CPU extension, against float64 and a stable sort."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.cpu.cases import matrix, on_every_set

_cpu: Any = pytest.importorskip("forerun._cpu")


SIZES = st.sampled_from([1, 5, 16, 17, 100, 4096, 4097, 9000])
INF = float("inf")


@given(SIZES, st.integers(0, 4), st.integers(1, 3))
def test_log_softmax(n: int, rows: int, threads: int) -> None:
    x = 6 * matrix(rows, n)
    _cpu.set_num_threads(threads)
    exact = np.array(x).astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    first, *others = on_every_set(lambda: _cpu.log_softmax(x))
    np.testing.assert_allclose(first, exact, atol=1e-5)
    for y in others:
        np.testing.assert_array_equal(y, first)
    for r in range(rows):
        np.testing.assert_array_equal(np.array(_cpu.log_softmax(x[r : r + 1]))[0], first[r])


def test_impossible_tokens() -> None:
    for y in on_every_set(lambda: _cpu.log_softmax(mx.array([[0.0, -INF, 0.0]]))):
        np.testing.assert_allclose(y, [[-np.log(2), -np.inf, -np.log(2)]], rtol=1e-6)


@pytest.mark.parametrize("row", [[0.0, float("nan"), 1.0], [0.0, INF, 1.0], [-INF] * 3], ids=["NaN", "infinity", "nothing"])
def test_no_distribution(row: list[float]) -> None:
    for y in on_every_set(lambda: _cpu.log_softmax(mx.array([row]))):
        assert np.isnan(y).all()


@given(SIZES, st.integers(0, 4), st.sampled_from([0, 1, 2, 20, 64, 5000]))
def test_top_k(n: int, rows: int, k: int) -> None:
    x = np.round(np.array(2 * matrix(rows, n)), 1)  # many ties, and minus zero
    k = min(n, k)
    expected = np.argsort(-x, axis=1, kind="stable")[:, :k]
    for name in _cpu.instruction_sets():
        _cpu.use(name)
        values, indices = _cpu.top_k(mx.array(x), k)
        np.testing.assert_array_equal(np.array(indices), expected)
        np.testing.assert_array_equal(np.array(values), np.take_along_axis(x, expected, axis=1))


def test_top_k_of_nan_has_different_indices() -> None:
    x = mx.full((1, 300), float("nan"))
    for indices in on_every_set(lambda: _cpu.top_k(x, 40)[1]):
        assert len(set(indices[0].tolist())) == 40


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="top_k"):
        _cpu.top_k(mx.zeros((2, 5)), 6)
    with pytest.raises(ValueError, match="log_softmax"):
        _cpu.log_softmax(mx.zeros((5,)))
