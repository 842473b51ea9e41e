from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

_cpu: Any = pytest.importorskip("forerun._cpu")

EPS = 1e-6


class Case(NamedTuple):
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def width(self) -> int:
        return self.channels + self.value_heads * self.value_dim + 2 * self.value_heads


CASES = (Case(4, 8, 64, 64, 4), Case(2, 2, 128, 128, 4), Case(1, 3, 32, 48, 2), Case(2, 4, 64, 16, 1), Case(1, 17, 16, 16, 3))


class State(NamedTuple):
    tail: mx.array
    matrix: mx.array


class Layer:
    """Random weights of a case, and calls with them."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.random = case, np.random.default_rng(seed)
        self.conv = self.array(case.conv_width, case.channels)
        self.decay_rate = mx.array(np.exp(self.random.normal(size=case.value_heads)).astype(np.float32))
        self.dt_bias, self.gain = self.array(case.value_heads), self.array(case.value_dim)

    def array(self, *shape: int) -> mx.array:
        return mx.array(self.random.normal(size=shape).astype(np.float32))

    def state(self) -> State:
        c = self.case
        return State(self.array(c.conv_width - 1, c.channels), self.array(c.value_heads, c.value_dim, c.key_dim))

    def projected(self, rows: int) -> mx.array:
        return self.array(rows, self.case.width)

    def __call__(self, projected: mx.array, states: list[State], spans: list[int]) -> tuple[mx.array, list[State]]:
        tails, matrices = [s.tail for s in states], [s.matrix for s in states]
        weights = (self.conv, self.decay_rate, self.dt_bias, self.gain, EPS, self.case.key_heads, self.case.value_heads)
        y, tails, matrices = _cpu.delta_net(projected, tails, matrices, spans, *weights)
        return y, [State(*state) for state in zip(tails, matrices, strict=True)]


def expected(layer: Layer, projected: mx.array, state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y, tail and matrix in float64."""
    c, rows = layer.case, projected.shape[0]
    x, conv, tail, matrix = (np.array(a, np.float64) for a in (projected, layer.conv, state.tail, state.matrix))
    rate, bias, gain = (np.array(a, np.float64) for a in (layer.decay_rate, layer.dt_bias, layer.gain))
    qkv, z, b, a = np.split(x, np.cumsum([c.channels, c.value_heads * c.value_dim, c.value_heads]), axis=1)
    padded = np.concatenate([tail, qkv])
    mixed = silu(sum(padded[j : j + rows] * conv[j] for j in range(c.conv_width)))
    q, k, v = np.split(mixed, np.cumsum([c.key_heads * c.key_dim] * 2), axis=1)
    q, k = (x.reshape(rows, c.key_heads, c.key_dim).repeat(c.value_heads // c.key_heads, axis=1) for x in (q, k))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q, v = q * c.key_dim**-0.5, v.reshape(rows, c.value_heads, c.value_dim)
    decay, beta = np.exp(-rate * np.logaddexp(a + bias, 0)), 1 / (1 + np.exp(-b))
    ys = []
    for i in range(rows):
        matrix = matrix * decay[i][:, None, None]
        matrix = matrix + np.einsum("hv,hk->hvk", beta[i][:, None] * (v[i] - np.einsum("hvk,hk->hv", matrix, k[i])), k[i])
        ys.append(np.einsum("hvk,hk->hv", matrix, q[i]))
    y = np.array(ys).reshape(rows, c.value_heads, c.value_dim)
    y = y / np.sqrt((y * y).mean(-1, keepdims=True) + EPS) * gain * silu(z.reshape(y.shape))
    return y.reshape(rows, -1), padded[rows:], matrix


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def same(a: mx.array, b: mx.array) -> bool:
    return np.array_equal(np.array(a).view(np.uint32), np.array(b).view(np.uint32))


def same_states(a: list[State], b: list[State]) -> bool:
    return all(same(x, y) for s, t in zip(a, b, strict=True) for x, y in zip(s, t, strict=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_is_the_layer_in_float64(case: Case, rows: int) -> None:
    layer = Layer(case, rows)
    projected, state = layer.projected(rows), layer.state()
    y, (after,) = layer(projected, [state], [rows])
    for actual, wanted in zip((y, *after), expected(layer, projected, state), strict=True):
        np.testing.assert_allclose(np.array(actual), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("gate", [-200.0, -30.0, 0.0, 12.0, 80.0, 1000.0])
def test_decays_as_fast_as_the_gate_says(gate: float) -> None:
    """The matrix of a row without keys and values is only decayed: exp(-rate softplus(gate)), from no decay to all of it."""
    layer = Layer(Case(1, 1, 16, 16, 1), 0)
    layer.decay_rate, layer.dt_bias = mx.array([0.7]), mx.array([0.0])
    projected = mx.concatenate([mx.zeros((1, layer.case.width - 1)), mx.full((1, 1), gate)], axis=1)
    state = layer.state()
    _, (after,) = layer(projected, [state], [1])
    wanted = np.array(state.matrix, np.float64) * np.exp(-np.float64(np.float32(0.7)) * np.logaddexp(gate, 0))
    np.testing.assert_allclose(np.array(after.matrix), wanted, rtol=1e-6 * max(1, gate), atol=1e-36)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 3), st.data())
def test_has_the_same_bits_for_every_split_batch_and_set(case: Case, spans: list[int], threads: int, data: st.DataObject) -> None:
    layer = Layer(case, sum(spans))
    projected, states = [layer.projected(n) for n in spans], [layer.state() for _ in spans]
    before = _cpu.num_threads()
    try:
        _cpu.set_num_threads(threads)
        _cpu.use(data.draw(st.sampled_from(_cpu.instruction_sets())))
        y, after = layer(mx.concatenate(projected), states, spans)
        mx.eval(y, after)
    finally:
        _cpu.set_num_threads(before)
        _cpu.use(_cpu.instruction_sets()[0])
    ys = []
    for i, rows in enumerate(projected):
        cut, part = data.draw(st.integers(0, spans[i])), [states[i]]
        for piece in (rows[:cut], rows[cut:]):
            out, part = layer(piece, part, [piece.shape[0]])
            ys.append(out)
        assert same_states(part, [after[i]])
    assert same(y, mx.concatenate(ys))


def test_leaves_a_matrix_alone_that_somebody_holds() -> None:
    layer = Layer(CASES[0], 1)
    state, projected = layer.state(), layer.projected(3)
    matrix = np.array(state.matrix)
    mx.eval(layer(projected, [state], [3]))
    assert np.array_equal(np.array(state.matrix), matrix)


def test_writes_a_matrix_in_place_that_nobody_holds() -> None:
    layer = Layer(CASES[1], 1)
    states = [layer.state()]
    mx.eval(states)
    projected = layer.projected(2)
    before = np.array(states[0].matrix, copy=False).ctypes.data
    _, states = layer(projected, states, [2])
    mx.eval(states)
    assert np.array(states[0].matrix, copy=False).ctypes.data == before


def test_reads_strided_inputs_and_runs_compiled() -> None:
    layer, rows = Layer(CASES[0], 2), 6
    state, wide = layer.state(), layer.array(rows, 2, layer.case.width)
    y, after = layer(wide[:, 1] + 0, [state], [rows])
    strided, strided_after = layer(wide[:, 1], [state], [rows])
    compiled = mx.compile(lambda x, tail, matrix: layer(x, [State(tail, matrix)], [rows]), shapeless=True)
    traced, traced_after = compiled(wide[:, 1], *state)
    assert same(y, strided)
    assert same_states(after, strided_after)
    assert same(y, traced)
    assert same_states(after, traced_after)


@pytest.mark.parametrize("wrong", ["spans", "width", "heads", "dtype"])
def test_refuses_what_does_not_fit(wrong: str) -> None:
    layer = Layer(CASES[0], 3)
    projected, spans = layer.projected(4), [3 if wrong == "spans" else 4]
    if wrong == "width":
        projected = projected[:, 1:]
    if wrong == "heads":
        layer.case = layer.case._replace(key_heads=3)
    if wrong == "dtype":
        projected = projected.astype(mx.float16)
    with pytest.raises(ValueError, match="delta_net"):
        layer(projected, [Layer(CASES[0], 3).state()], spans)
