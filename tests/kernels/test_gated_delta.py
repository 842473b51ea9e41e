"""The gated delta rule: steps against float64 and under splits; chunks against float64 with repeated keys and strong decay."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from tests.kernels.delta_prefix import plain

from forerun.kernels.gated_delta import CHUNK_ROWS, chunks, steps
from forerun.kernels.numerics import GatedDelta

KEY_HEADS, VALUE_HEADS, DIM, ROWS = 2, 4, 32, 150
Case = tuple[mx.array, ...]


def normal(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def uniform(seed: int, low: float, high: float) -> mx.array:
    return mx.random.uniform(low, high, (ROWS, VALUE_HEADS), key=mx.random.key(seed))


def unit(x: mx.array) -> mx.array:
    return x * mx.rsqrt((x * x).sum(-1, keepdims=True))


def case(keys: mx.array, g: mx.array, beta: mx.array) -> Case:
    """q, k, v, g, beta, state."""
    q, v, state = normal(0, ROWS, KEY_HEADS, DIM) * DIM**-0.5, normal(1, ROWS, VALUE_HEADS, DIM), 0.1 * normal(2, VALUE_HEADS, DIM, DIM)
    return q, keys, v, g, beta, state


RANDOM = unit(normal(3, ROWS, KEY_HEADS, DIM))
SAME = mx.broadcast_to(unit(normal(4, 1, KEY_HEADS, DIM)), RANDOM.shape)
ONES = mx.ones((ROWS, VALUE_HEADS))
SOMETIMES = mx.where(uniform(7, 0, 1) < 0.3, 1.0, 0.0)
CASES = {
    "random": case(RANDOM, uniform(5, 0.9, 1), uniform(6, 0, 1)),
    "one key, never forgotten": case(SAME, ONES, ONES),
    "one key, half learnt": case(SAME, 0.999 * ONES, 0.5 * ONES),
    "keys much alike": case(unit(SAME + 0.1 * normal(8, *RANDOM.shape)), uniform(5, 0.99, 1), uniform(6, 0.5, 1)),
    "short memory": case(RANDOM, uniform(5, 0, 1) ** 4, uniform(6, 0, 1)),
    "no memory": case(RANDOM, 1e-38 * ONES, uniform(6, 0, 1)),
    "all forgotten now and then": case(RANDOM, mx.where(SOMETIMES > 0, 1e-38, 0.999), uniform(6, 0, 1)),
    "a decay that is rounded to zero": case(RANDOM, 1.0 - SOMETIMES, uniform(6, 0, 1)),
    "nothing learnt": case(RANDOM, uniform(5, 0.9, 1), 0 * ONES),
}


def error(found: tuple[mx.array, mx.array], expected: tuple[np.ndarray, np.ndarray]) -> float:
    """The larger of both maximum errors, relative to the maximum value."""
    return max(float(np.abs(np.array(f) - e).max() / np.abs(e).max()) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_steps_are_the_rule(name: str) -> None:
    assert error(steps(*CASES[name]), plain(CASES[name])) < 3e-6


@pytest.mark.parametrize("name", CASES)
def test_chunks_are_the_rule(name: str) -> None:
    assert error(chunks(*CASES[name]), plain(CASES[name])) < 1e-5


@pytest.mark.parametrize("rows", [17, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS])
def test_chunks_of_any_number_of_rows(rows: int) -> None:
    *some, state = CASES["random"]
    given = (*(x[:rows] for x in some), state)
    y, after = chunks(*given)
    assert y.shape == (rows, VALUE_HEADS, DIM)
    assert error((y, after), plain(given)) < 1e-5


def in_parts(rule: GatedDelta, given: Case, sizes: list[int]) -> tuple[mx.array, mx.array]:
    q, k, v, g, beta, state = given
    out, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)
        y, state = rule(q[rows], k[rows], v[rows], g[rows], beta[rows], state)
        out.append(y)
        start += size
    return mx.concatenate(out), state


@pytest.mark.parametrize("sizes", [[1] * ROWS, [2] * (ROWS // 2), [64, 64, 22], [149, 1], [1, 149], [7, 1, 1, 90, 51]], ids=str)
def test_steps_have_the_same_bits_however_rows_are_split(sizes: list[int]) -> None:
    y, state = steps(*CASES["random"])
    parts, last = in_parts(steps, CASES["random"], sizes)
    assert mx.array_equal(y, parts)
    assert mx.array_equal(state, last)


def test_chunks_on_their_own_grid_have_the_same_bits() -> None:
    y, state = chunks(*CASES["random"])
    parts, last = in_parts(chunks, CASES["random"], [CHUNK_ROWS, ROWS - CHUNK_ROWS])
    assert mx.array_equal(y, parts)
    assert mx.array_equal(state, last)
