"""The gated delta rule of fast numerics: by chunks here; the CUDA source, run on the CPU, has the same bits under any split."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from tests.kernels import cuda
from tests.kernels.delta_prefix import plain

from forerun.kernels import delta_rule as module
from forerun.kernels import gated_delta
from forerun.kernels.delta_rule import delta_rule, errors, has_cuda_kernel

TYPES = {mx.bfloat16: "__nv_bfloat16", mx.float32: "float"}
THREADS = module._THREADS


class Case(NamedTuple):
    rows: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    dtype: mx.Dtype


CASES = (
    Case(1, 2, 4, 64, 32, mx.bfloat16),
    Case(5, 2, 6, 128, 16, mx.bfloat16),
    Case(9, 1, 1, 64, 64, mx.float32),
    Case(20, 2, 2, 128, 32, mx.float32),
)


class Inputs(NamedTuple):
    q: mx.array
    k: mx.array
    v: mx.array
    g: mx.array
    beta: mx.array
    state: mx.array

    def rows(self, start: int, stop: int) -> Inputs:
        return Inputs(*(x[start:stop] for x in self[:5]), self.state)


def inputs(case: Case) -> Inputs:
    keys, values = (case.rows, case.key_heads, case.key_dim), (case.rows, case.value_heads, case.value_dim)
    shapes = (keys, keys, values, values[:2], values[:2], (case.value_heads, case.value_dim, case.key_dim))
    q, k, v, g, beta, state = (mx.random.normal(s, key=mx.random.key(i)) for i, s in enumerate(shapes))
    q, k = q * case.key_dim**-0.5, k / mx.linalg.norm(k, axis=-1, keepdims=True)
    g = mx.where(g > 1, 0.0, mx.exp(-mx.abs(g)))  # sometimes forgets everything
    return Inputs(*(x.astype(case.dtype) for x in (q, k, v)), g, mx.sigmoid(beta).astype(case.dtype), state)


def test_without_cuda_it_uses_chunks() -> None:
    given = inputs(Case(70, 2, 4, 64, 32, mx.float32))
    assert not has_cuda_kernel(given.v.dtype, given.q.shape[2], given.v.shape[2])
    assert errors(mx.Device(mx.cpu, 0)) == []
    for found, expected in zip(delta_rule(*given), gated_delta.chunks(*given), strict=True):
        assert mx.array_equal(found, expected)


Kernel = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def on_cuda(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """The CUDA source, compiled for the CPU with every case's constants as MLX would write them."""
    library = cuda.compiled(tmp_path_factory.mktemp("cuda"), "".join(map(functions, range(len(CASES)), CASES)))
    return lambda case, given, spans=(): run(library, CASES.index(case), given, spans or (given.v.shape[0],))


def functions(number: int, case: Case) -> str:
    """The kernel of a case, and `run_<number>` that runs it block by block."""
    constants = {"KEY_HEADS": case.key_heads, "KEY_DIM": case.key_dim, "VALUE_HEADS": case.value_heads, "VALUE_DIM": case.value_dim}
    return f"""
namespace case_{number} {{
typedef {TYPES[case.dtype]} T;
{cuda.written(constants | {"THREADS": THREADS})}
static const T *q, *k, *v, *beta;
static const int* starts;
static const float *g, *state;
static T* y;
static float* after;
void run() {{
{cuda.body("delta_rule")}
}}
extern "C" void run_{number}(int sequences, const int* starts_, const T* q_, const T* k_, const T* v_, const float* g_, const T* beta_,
    const float* state_, T* y_, float* after_) {{
  starts = starts_, q = q_, k = k_, v = v_, g = g_, beta = beta_, state = state_, y = y_, after = after_;
  for (int z = 0; z < sequences; ++z)
    for (int head = 0; head < VALUE_HEADS; ++head)
      for (int x = 0; x < VALUE_DIM * {module._LANES} / THREADS; ++x) blockIdx = {{x, head, z}}, fibres.run(THREADS, run);
}}
}}
"""


def run(library: ctypes.CDLL, number: int, given: Inputs, spans: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """y and the state in float32. The outputs are poisoned before."""
    starts, arrays = np.array([0, *accumulate(spans)], np.int32), [cuda.bits(x) for x in given]
    y = np.full(given.v.shape, 0x7FC0, np.uint16) if given.v.dtype == mx.bfloat16 else np.full(given.v.shape, np.nan, np.float32)
    after = np.full(given.state.shape, np.nan, np.float32)
    getattr(library, f"run_{number}")(len(spans), *cuda.pointers(starts, *arrays, y, after))
    return cuda.floats(y) if y.dtype == np.uint16 else y, after


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rows}x{case.key_heads}to{case.value_heads}d{case.key_dim}")
def test_the_cuda_kernel_is_the_rule(on_cuda: Kernel, case: Case) -> None:
    given = inputs(case)
    found, expected = on_cuda(case, given), plain(given)
    errors = [np.abs(f - e).max() / np.abs(e).max() for f, e in zip(found, expected, strict=True)]
    assert errors[0] < (1e-5 if case.dtype == mx.float32 else 5e-3)
    assert errors[1] < 1e-5


@pytest.mark.parametrize("sizes", [(1,) * 20, (7, 13), (19, 1)], ids=len)
def test_the_cuda_kernel_has_the_same_bits_however_rows_are_split(on_cuda: Kernel, sizes: tuple[int, ...]) -> None:
    case, start, parts = CASES[3], 0, []
    whole = inputs(case)
    given = whole
    for size in sizes:
        y, state = on_cuda(case, given.rows(start, start + size))
        given, start = given._replace(state=mx.array(state)), start + size
        parts.append(y)
    y, after = on_cuda(case, whole)
    assert np.array_equal(np.concatenate(parts), y)
    assert np.array_equal(state, after)


def test_several_sequences_have_the_bits_of_each_alone(on_cuda: Kernel) -> None:
    case, spans = CASES[3], (13, 1, 6)
    given = inputs(case)
    states = mx.stack([given.state, -given.state, 0.5 * given.state])
    y, after = on_cuda(case, given._replace(state=states), spans)
    for j, (start, stop) in enumerate(pairwise([0, *accumulate(spans)])):
        own_y, own_after = on_cuda(case, given.rows(start, stop)._replace(state=states[j]))
        assert np.array_equal(y[start:stop], own_y)
        assert np.array_equal(after[j], own_after)
