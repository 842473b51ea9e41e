"""Attention of the CPU extension: bits of a row in every batch, split, layout, set and number of threads; closeness to float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

_cpu: Any = pytest.importorskip("forerun._cpu")


class Heads(NamedTuple):
    heads: int
    kv_heads: int
    dim: int


HEADS = (Heads(4, 2, 64), Heads(3, 1, 16), Heads(2, 2, 80), Heads(5, 1, 128), Heads(8, 2, 256))


class Context(NamedTuple):
    """Keys and values [kv_heads, length, dim], queries of its last rows."""

    q: mx.array
    keys: mx.array
    values: mx.array

    @classmethod
    def random(cls, h: Heads, rows: int, length: int, seed: int = 0) -> Context:
        r = np.random.default_rng((seed, rows, length))
        shapes = (rows, h.heads, h.dim), (h.kv_heads, length, h.dim), (h.kv_heads, length, h.dim)
        return cls(*(mx.array(r.standard_normal(s, np.float32)) for s in shapes))

    @property
    def rows(self) -> int:
        return self.q.shape[0]

    @property
    def positions(self) -> mx.array:
        length = self.keys.shape[1]
        return mx.arange(length - self.rows, length, dtype=mx.int32)


def attend(sequences: Sequence[Context], first: int = 0) -> list[np.ndarray]:
    q, positions = (mx.concatenate(list(x)) for x in ([s.q for s in sequences], [s.positions for s in sequences]))
    spans = [s.rows for s in sequences]
    y = _cpu.attention(q, [s.keys for s in sequences], [s.values for s in sequences], [None] * len(spans), spans, positions, first, 0)
    return np.split(np.array(y), np.cumsum(spans)[:-1])


def expected(s: Context, first: int = 0) -> np.ndarray:
    q, keys, values = (np.array(a, np.float64) for a in s)
    group = q.shape[1] // keys.shape[0]
    keys, values = keys.repeat(group, axis=0), values.repeat(group, axis=0)
    scores = np.einsum("rhd,hkd->rhk", q, keys) * q.shape[-1] ** -0.5
    k, rows = np.arange(keys.shape[1]), np.array(s.positions)[:, None]
    visible = (k <= rows) & (k >= np.minimum(first, rows))
    scores = np.where(visible[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("rhk,hkd->rhd", weights / weights.sum(-1, keepdims=True), values)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(
    ("rows", "length", "first"), [(1, 1, 0), (1, 1, 1), (3, 70, 1), (1, 700, 0), (40, 40, 1), (130, 1100, 0), (9, 1600, 70)]
)
def test_is_attention_in_float64(heads: Heads, rows: int, length: int, first: int) -> None:
    s = Context.random(heads, rows, length)
    np.testing.assert_allclose(attend([s], first)[0], expected(s, first), rtol=2e-5, atol=2e-6)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_has_the_same_bits_for_every_batch_split_and_set(data: st.DataObject) -> None:
    heads, first = data.draw(st.sampled_from(HEADS)), data.draw(st.sampled_from([0, 1, 65]))
    spans = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 20, 67]), min_size=1, max_size=3))
    sequences = [
        Context.random(heads, n, n + data.draw(st.sampled_from([0, 1, 63, 64, 500, 1030])) + (n == 0), seed=i) for i, n in enumerate(spans)
    ]
    _cpu.use(data.draw(st.sampled_from(_cpu.instruction_sets())))
    _cpu.set_num_threads(data.draw(st.integers(1, 3)))
    together = attend(sequences, first)
    _cpu.use(_cpu.instruction_sets()[0])
    for s, y in zip(sequences, together, strict=True):
        cut = data.draw(st.integers(0, s.rows))
        head, tail = s._replace(q=s.q[:cut]), s._replace(q=s.q[cut:])
        short = s.keys.shape[1] - tail.rows
        head = head._replace(keys=s.keys[:, :short], values=s.values[:, :short])
        assert np.array_equal(np.concatenate([attend([part], first)[0] for part in (head, tail)]), y)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(HEADS), st.sampled_from([1, 16, 24, 64, 256]), st.integers(1, 70), st.sampled_from([0, 5, 700]), st.integers(0, 9))
def test_has_the_same_bits_over_pages(heads: Heads, block_tokens: int, rows: int, before: int, seed: int) -> None:
    """Pages of two sequences lie in one pool in any order; what no row sees is not a number."""
    random = np.random.default_rng(seed)
    sequences = [Context.random(heads, rows, rows + n, seed=seed) for n in (before, before + 33)]
    counts = [-(-s.keys.shape[1] // block_tokens) for s in sequences]
    order = random.permutation(sum(counts) + 1).astype(np.int32)
    tables = [order[: counts[0]], order[counts[0] : sum(counts)]]
    pools = np.full((2, heads.kv_heads, (sum(counts) + 1) * block_tokens, heads.dim), np.nan, np.float32)
    for s, table in zip(sequences, tables, strict=True):
        at = (table[:, None] * block_tokens + np.arange(block_tokens)).reshape(-1)[: s.keys.shape[1]]
        pools[0][:, at], pools[1][:, at] = np.array(s.keys), np.array(s.values)
    keys, values = mx.array(pools[0]), mx.array(pools[1])
    q, positions = mx.concatenate([s.q for s in sequences]), mx.concatenate([s.positions for s in sequences])
    y = _cpu.attention(q, [keys] * 2, [values] * 2, [mx.array(t) for t in tables], [rows] * 2, positions, 1, block_tokens)
    assert np.array_equal(np.array(y), np.concatenate(attend(sequences, 1)))


def test_a_masked_key_does_not_matter() -> None:
    s = Context.random(HEADS[0], 5, 100)
    other = np.array(s.keys), np.array(s.values)
    for a in other:
        a[:, 0] = 1e30
        a[:, 98:] = -3e37
    keys, values = (mx.array(a) for a in other)
    assert np.array_equal(attend([s], 1)[0][:3], attend([s._replace(keys=keys, values=values)], 1)[0][:3])


def test_large_scores_do_not_overflow() -> None:
    s = Context.random(HEADS[0], 3, 600)
    s = s._replace(q=s.q * 1e4, keys=s.keys * 1e4)
    np.testing.assert_allclose(attend([s])[0], expected(s), rtol=1e-4, atol=1e-4)


def test_reads_part_of_a_buffer_and_runs_compiled() -> None:
    s = Context.random(HEADS[0], 4, 90)
    buffer = s._replace(keys=mx.pad(s.keys, [(0, 0), (0, 38), (0, 0)]), values=mx.pad(s.values, [(0, 0), (0, 38), (0, 0)]))
    (y,) = attend([s])

    def call(q: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        return _cpu.attention(q, [keys], [values], [None], [4], s.positions, 0, 0)

    for f in (call, mx.compile(call), mx.compile(call, shapeless=True)):
        assert np.array_equal(np.array(f(*buffer)), y)
        assert np.array_equal(np.array(f(buffer.q, buffer.keys[:, :90], buffer.values[:, :90])), y)
        swapped = buffer.keys.swapaxes(0, 1) + 0
        assert np.array_equal(np.array(f(buffer.q, swapped.swapaxes(0, 1), buffer.values)), y)


@pytest.mark.parametrize("wrong", ["spans", "heads", "dim", "positions", "pages"])
def test_refuses_what_does_not_fit(wrong: str) -> None:
    s = Context.random(HEADS[0], 4, 90)
    heads, dim = 3 if wrong == "heads" else 4, 48 if wrong == "dim" else 64
    q, positions = mx.zeros((4, heads, dim)), mx.arange(4, dtype=mx.int64 if wrong == "positions" else mx.int32)
    blocks = mx.array([0], dtype=mx.int32) if wrong == "pages" else None
    with pytest.raises(ValueError, match="attention"):
        _cpu.attention(q, [s.keys], [s.values], [blocks], [3 if wrong == "spans" else 4], positions, 0, 0)
