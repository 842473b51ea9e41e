"""What surrounds attention in the CPU extension: its inputs from a projection, writes of keys and values, gates."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

_cpu: Any = pytest.importorskip("forerun._cpu")


EPS = 1e-6


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    dims: int
    is_gated: bool
    is_traditional: bool

    @property
    def width(self) -> int:
        return ((2 if self.is_gated else 1) * self.heads + 2 * self.kv_heads) * self.head_dim


SHAPES = (
    Shape(4, 2, 64, 16, is_gated=True, is_traditional=False),
    Shape(3, 1, 64, 64, is_gated=False, is_traditional=True),
    Shape(2, 2, 48, 30, is_gated=False, is_traditional=False),
    Shape(8, 2, 256, 64, is_gated=True, is_traditional=False),
)


def random(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape, np.float32))


def frequencies(dims: int, theta: float = 1e6) -> mx.array:
    return mx.array((theta ** (-np.arange(0, dims, 2) / dims)).astype(np.float32))


def inputs(projected: mx.array, gains: tuple[mx.array | None, mx.array | None], positions: mx.array, s: Shape) -> list[np.ndarray]:
    layout = (s.heads, s.kv_heads, s.head_dim, s.is_gated, s.is_traditional)
    return [np.array(x) for x in _cpu.attention_inputs(projected, *gains, EPS, positions, frequencies(s.dims), *layout)]


def split(projected: mx.array, s: Shape) -> tuple[np.ndarray, np.ndarray]:
    x, rows = np.array(projected), projected.shape[0]
    heads = x[:, : (2 if s.is_gated else 1) * s.heads * s.head_dim].reshape(rows, s.heads, -1)
    k = x[:, heads[0].size :][:, : s.kv_heads * s.head_dim]
    return heads[..., : s.head_dim], k.reshape(rows, s.kv_heads, s.head_dim)


def rotated(x: np.ndarray, positions: mx.array, s: Shape) -> np.ndarray:
    """The bits that the operation documents."""
    angles = (np.array(positions).astype(np.float32)[:, None] * np.array(frequencies(s.dims))).astype(np.float64)
    sine, cosine = (f(angles).astype(np.float32)[:, None] for f in (np.sin, np.cos))
    first, second = (slice(0, s.dims, 2), slice(1, s.dims, 2)) if s.is_traditional else (slice(0, s.dims // 2), slice(s.dims // 2, s.dims))
    out = x.copy()
    out[..., first] = x[..., first] * cosine - x[..., second] * sine
    out[..., second] = x[..., first] * sine + x[..., second] * cosine
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_rotates_with_correctly_rounded_sines_on_every_set(shape: Shape) -> None:
    projected, positions = random(7, shape.width), mx.array([0, 1, 17, 999, 20_000, 262_143, 1_000_000], dtype=mx.int32)
    for name in _cpu.instruction_sets():
        _cpu.use(name)
        for actual, x in zip(inputs(projected, (None, None), positions, shape), split(projected, shape), strict=True):
            assert np.array_equal(actual, rotated(x, positions, shape))


def test_sines_are_right_next_to_their_zeros() -> None:
    """There all digits of a multiple of pi / 2 count: of a million multiples, those which a float32 meets best."""
    multiples = np.arange(1, 1_000_001) * (np.pi / 2)
    angles = multiples.astype(np.float32)
    angles = angles[np.argsort(np.abs(angles - multiples))[:1024]]
    projected = mx.concatenate([mx.ones((1, 1024)), mx.zeros((1, 1024))], axis=1)
    q, _ = _cpu.attention_inputs(projected, None, None, EPS, mx.array([1], dtype=mx.int32), mx.array(angles), 1, 0, 2048, False, False)
    wanted = [f(angles.astype(np.float64)).astype(np.float32) for f in (np.cos, np.sin)]
    assert np.array_equal(np.array(q).reshape(2, 1024), wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_normalises_as_the_operation_for_rows(shape: Shape) -> None:
    projected, positions = random(5, shape.width), mx.arange(5, dtype=mx.int32) + 300
    gains = random(shape.head_dim, seed=1), random(shape.head_dim, seed=2)
    for actual, x, gain in zip(inputs(projected, gains, positions, shape), split(projected, shape), gains, strict=True):
        assert np.array_equal(actual, rotated(np.array(_cpu.rms_norm(mx.array(x), gain, EPS)), positions, shape))


def test_agrees_with_mlx_where_periods_are_given() -> None:
    """`frequencies` are 1 / periods, the `freqs` of mx.fast.rope."""
    shape, positions = SHAPES[1], mx.array([3, 50, 200], dtype=mx.int32)
    projected = random(3, shape.width)
    q, _ = inputs(projected, (None, None), positions, shape)
    x = mx.array(split(projected, shape)[0])[:, :, None]
    wanted = mx.fast.rope(x, shape.dims, traditional=True, base=None, scale=1.0, offset=positions, freqs=1 / frequencies(shape.dims))
    np.testing.assert_allclose(q, np.array(wanted[:, :, 0]), atol=1e-4)


@given(st.sampled_from(SHAPES), st.integers(0, 40), st.integers(1, 3), st.integers(0, 40))
def test_inputs_of_a_row_do_not_depend_on_others_or_on_threads(shape: Shape, rows: int, threads: int, cut: int) -> None:
    projected, positions = random(rows, shape.width, seed=rows), mx.arange(rows, dtype=mx.int32) * 37
    gains = random(shape.head_dim, seed=1), None
    _cpu.set_num_threads(threads)
    together = inputs(projected, gains, positions, shape)
    apart = [inputs(projected[p], gains, positions[p], shape) for p in (slice(0, cut), slice(cut, None))]
    assert all(np.array_equal(x, np.concatenate(y)) for x, y in zip(together, zip(*apart, strict=True), strict=True))


def test_writes_slices_of_the_projection_in_place() -> None:
    keys, values, projected = mx.zeros((2, 300, 32)), mx.zeros((2, 300, 32)), random(3, 7 * 32)
    mx.eval(keys, values)
    before = [np.array(a, copy=False).ctypes.data for a in (keys, values)]
    k, v = (projected[:, i * 64 : i * 64 + 64].reshape(3, 2, 32) for i in (0, 2))
    keys, values = _cpu.write_rows(keys, values, k, v, mx.array([5, 299, 0], dtype=mx.int32))
    mx.eval(keys, values)
    assert [np.array(a, copy=False).ctypes.data for a in (keys, values)] == before
    for written, rows in ((keys, k), (values, v)):
        wanted = np.zeros((2, 300, 32), np.float32)
        wanted[:, [5, 299, 0]] = np.array(rows).swapaxes(0, 1)
        assert np.array_equal(np.array(written), wanted)


def test_copies_nothing_in_a_graph_that_writes_and_attends_again_and_again() -> None:
    """What an unfinished task of the same graph holds is waited for: a copy would cost the capacity."""
    buffers, rows, at = (mx.zeros((2, 4000, 64)), mx.zeros((2, 4000, 64))), random(1, 2, 64), mx.array([3], dtype=mx.int32)
    mx.eval(buffers, rows, at)
    before = [np.array(a, copy=False).ctypes.data for a in buffers]
    rows = rows + 0 * mx.sum(random(1000, 1000) @ random(1000, 1000))  # so that nothing after it has run when the graph is walked
    for _ in range(8):
        buffers = _cpu.write_rows(*buffers, rows, rows, at)
        rows = _cpu.attention(rows, *([buffer] for buffer in buffers), [None], [1], at, 0, 0)
    mx.eval(buffers, rows)
    assert [np.array(a, copy=False).ctypes.data for a in buffers] == before


def test_copies_what_somebody_else_holds() -> None:
    keys, values, rows = random(1, 4, 16), random(1, 4, 16), random(1, 1, 16)
    before = np.array(keys)
    written, _ = _cpu.write_rows(keys, values, rows, rows, mx.array([2], dtype=mx.int32))
    assert np.array_equal(np.array(written)[0, 2], np.array(rows)[0, 0])
    assert np.array_equal(np.array(written)[0, :2], before[0, :2])
    assert np.array_equal(np.array(keys), before)


def test_writes_in_place_within_a_compiled_step() -> None:
    @mx.compile
    def step(keys: mx.array, values: mx.array, rows: mx.array) -> tuple[mx.array, mx.array]:
        keys, values = _cpu.write_rows(keys, values, rows, rows, mx.array([1], dtype=mx.int32))
        return tuple(_cpu.write_rows(keys, values, rows + 1, rows, mx.array([3], dtype=mx.int32)))

    rows = random(1, 1, 16)
    keys, _ = step(mx.zeros((1, 4, 16)), mx.zeros((1, 4, 16)), rows)
    assert np.array_equal(np.array(keys)[0], np.stack([np.zeros(16), np.array(rows)[0, 0], np.zeros(16), np.array(rows + 1)[0, 0]]))


@given(st.integers(0, 20), st.integers(1, 3))
def test_gates_by_the_sigmoid(rows: int, threads: int) -> None:
    projected, y = random(rows, 3 * 2 * 16 + 32), random(rows, 3, 16, seed=1)
    _cpu.set_num_threads(threads)
    gate = np.array(projected, np.float64)[:, :96].reshape(rows, 3, 2, 16)[:, :, 1]
    wanted = (np.array(y) / (1 + np.exp(-gate))).reshape(rows, 48)
    results = []
    for name in _cpu.instruction_sets():
        _cpu.use(name)
        results.append(np.array(_cpu.sigmoid_gate(y, projected, 3, 16)))
        np.testing.assert_allclose(results[-1], wanted, rtol=1e-6, atol=1e-7)
    assert all(np.array_equal(results[0], other) for other in results)


def test_refuses_what_does_not_fit() -> None:
    shape, positions = SHAPES[0], mx.arange(2, dtype=mx.int32)
    with pytest.raises(ValueError, match="holds queries and keys"):
        inputs(random(2, 64), (None, None), positions, shape)
    with pytest.raises(ValueError, match="positions"):
        inputs(random(3, shape.width), (None, None), positions, shape)
    with pytest.raises(ValueError, match="k, v"):
        _cpu.write_rows(mx.zeros((1, 4, 16)), mx.zeros((1, 4, 16)), random(2, 1, 16), random(1, 1, 16), positions)
    with pytest.raises(ValueError, match="sigmoid_gate"):
        _cpu.sigmoid_gate(random(2, 1, 16), random(2, 31), 1, 16)
