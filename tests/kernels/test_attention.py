"""Attention of new rows: both functions against float64. `blocked` gives a row the same bits with any other rows and later keys."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from forerun.kernels import attention
from forerun.kernels.attention import BLOCK_KEYS, Attend, blocked, fused

HEADS, KV_HEADS, DIM = 4, 2, 16
ROWS, START = 37, 490  # the rows cross a border of blocks
CAPACITY = 4 * BLOCK_KEYS


def normal(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


@pytest.fixture(scope="module")
def inputs() -> tuple[mx.array, mx.array, mx.array]:
    """q [heads, rows, dim], keys and values [kv_heads, CAPACITY, dim]."""
    return 2 * normal(0, HEADS, ROWS, DIM), 2 * normal(1, KV_HEADS, CAPACITY, DIM), normal(2, KV_HEADS, CAPACITY, DIM)


def positions(start: int, rows: int) -> mx.array:
    return mx.arange(start, start + rows, dtype=mx.int32)


def plain(q: mx.array, keys: mx.array, values: mx.array, start: int, first: int) -> np.ndarray:
    """Attention in float64, row by row."""
    q64, k64, v64 = (np.array(x, dtype=np.float64) for x in (q, keys, values))
    out = np.zeros(q64.shape)
    for head in range(HEADS):
        of = head // (HEADS // KV_HEADS)
        for row in range(q64.shape[1]):
            seen = slice(min(first, start + row), start + row + 1)
            scores = k64[of, seen] @ q64[head, row] / DIM**0.5
            weights = np.exp(scores - scores.max())
            out[head, row] = weights @ v64[of, seen] / weights.sum()
    return out


@pytest.mark.parametrize("attend", [blocked, fused])
@pytest.mark.parametrize(("start", "first"), [(START, 0), (START, 1), (0, 0), (0, 1), (BLOCK_KEYS, 1)])
def test_agrees_with_float64(inputs: tuple[mx.array, mx.array, mx.array], attend: Attend, start: int, first: int) -> None:
    q, keys, values = inputs
    found = attend(q, keys, values, positions(start, ROWS), first)
    assert np.abs(np.array(found) - plain(q, keys, values, start, first)).max() < 1e-5


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 22, 36])
def test_a_row_has_the_same_bits_however_rows_are_split(inputs: tuple[mx.array, mx.array, mx.array], rows: int) -> None:
    q, keys, values = inputs
    whole = blocked(q, keys, values, positions(START, ROWS), 1)
    parts = [blocked(q[:, a : a + rows], keys, values, positions(START, ROWS)[a : a + rows], 1) for a in range(0, ROWS, rows)]
    assert mx.array_equal(whole, mx.concatenate(parts, axis=1))


def test_keys_beyond_a_row_change_no_bit(inputs: tuple[mx.array, mx.array, mx.array]) -> None:
    q, keys, values = inputs
    near = 3 * BLOCK_KEYS
    few = blocked(q, keys[:, :near], values[:, :near], positions(START, ROWS), 0)
    assert mx.array_equal(few, blocked(q, keys, values, positions(START, ROWS), 0))
    beyond = mx.arange(CAPACITY)[:, None] > START + ROWS - 1
    assert mx.array_equal(few, blocked(q, mx.where(beyond, 1e4, keys), mx.where(beyond, -1e4, values), positions(START, ROWS), 0))


def test_splitting_many_rows_changes_no_bit(inputs: tuple[mx.array, mx.array, mx.array], monkeypatch: pytest.MonkeyPatch) -> None:
    q, keys, values = inputs
    whole = blocked(q, keys, values, positions(START, ROWS), 0)
    monkeypatch.setattr(attention, "_BLOCKED_SCORE_BYTES", 9 * HEADS * CAPACITY * 4)
    assert mx.array_equal(whole, blocked(q, keys, values, positions(START, ROWS), 0))


@pytest.mark.parametrize(("attend", "limit", "arrays"), [(blocked, "_BLOCKED_SCORE_BYTES", 4), (fused, "SCORE_BYTES", 2)])
def test_the_scores_of_a_long_context_are_never_materialised_at_once(
    attend: Attend, limit: str, arrays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, keys, most_bytes = 256, 16 * BLOCK_KEYS, 1 << 20
    monkeypatch.setattr(attention, limit, most_bytes)
    q, k, v = normal(0, HEADS, rows, DIM), normal(1, KV_HEADS, keys, DIM), normal(2, KV_HEADS, keys, DIM)
    mx.eval(q, k, v)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(attend(q, k, v, positions(keys - rows, rows), 0))
    scores_bytes, small_bytes = HEADS * rows * keys * 4, k.nbytes + v.nbytes + 2 * q.nbytes
    assert mx.get_peak_memory() - before < arrays * most_bytes + small_bytes < scores_bytes


def test_large_scores_do_not_overflow(inputs: tuple[mx.array, mx.array, mx.array]) -> None:
    q, keys, values = inputs
    assert bool(mx.all(mx.isfinite(blocked(q * 1e3, keys, values, positions(START, ROWS), 0))))
