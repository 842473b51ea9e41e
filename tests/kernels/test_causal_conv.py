"""The short convolution: its definition, and the same bits for a row however rows are split."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from forerun.kernels.causal_conv import causal_conv

CHANNELS, WIDTH, ROWS = 24, 4, 11


def normal(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


TAIL, X, WEIGHT = normal(0, WIDTH - 1, CHANNELS), normal(1, ROWS, CHANNELS), normal(2, WIDTH, CHANNELS)


def test_a_row_is_the_weighted_sum_of_itself_and_the_rows_before_it() -> None:
    inputs, weight = np.concatenate([np.array(TAIL), np.array(X)]).astype(np.float64), np.array(WEIGHT)
    y, tail = causal_conv(TAIL, X, WEIGHT)
    assert np.abs(np.array(y) - [(inputs[i : i + WIDTH] * weight).sum(0) for i in range(ROWS)]).max() < 1e-5
    assert np.array_equal(np.array(tail), np.array(X)[-(WIDTH - 1) :])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 10])
def test_a_row_has_the_same_bits_however_rows_are_split(rows: int) -> None:
    whole, last = causal_conv(TAIL, X, WEIGHT)
    tail, parts = TAIL, []
    for start in range(0, ROWS, rows):
        y, tail = causal_conv(tail, X[start : start + rows], WEIGHT)
        parts.append(y)
    assert mx.array_equal(whole, mx.concatenate(parts))
    assert mx.array_equal(last, tail)
