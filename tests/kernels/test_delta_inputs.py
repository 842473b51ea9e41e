"""Inputs of the delta rule: the portable form and the CUDA source, run on the CPU, against float64; any split of the rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from tests.kernels import cuda

from forerun.kernels import delta_inputs as module
from forerun.kernels.delta_inputs import Heads, errors, has_cuda_kernel, portable

TYPES = {mx.bfloat16: "__nv_bfloat16", mx.float32: "float"}
THREADS = module._THREADS


class Case(NamedTuple):
    rows: int
    heads: Heads
    width: int
    dtype: mx.Dtype


CASES = (
    Case(1, Heads(2, 64, 4, 64), 4, mx.bfloat16),
    Case(2, Heads(1, 128, 3, 128), 4, mx.bfloat16),
    Case(7, Heads(2, 32, 1, 32), 4, mx.float32),
    Case(5, Heads(1, 64, 2, 64), 2, mx.float32),
)
Arrays = list[mx.array]


def given(case: Case) -> Arrays:
    """tail, x, weight."""
    channels = (2 * case.heads.key_heads + case.heads.value_heads) * case.heads.key_dim
    shapes = ((case.width - 1, channels), (case.rows, channels), (case.width, channels))
    return [mx.random.normal(s, key=mx.random.key(i)).astype(case.dtype) for i, s in enumerate(shapes)]


def inputs_in_float64(case: Case, arrays: Arrays) -> list[np.ndarray]:
    """In float64: q, k, v and the next tail."""
    tail, x, weight = (np.array(a.astype(mx.float32), dtype=np.float64) for a in arrays)
    padded, (key_heads, dim, value_heads, _) = np.concatenate([tail, x]), case.heads
    mixed = np.array([(padded[i : i + case.width] * weight).sum(axis=0) for i in range(case.rows)])
    by_head = (mixed / (1 + np.exp(-mixed))).reshape(case.rows, -1, dim)
    qk, v = by_head[:, : 2 * key_heads], by_head[:, 2 * key_heads :]
    qk = qk / np.sqrt((qk**2).sum(axis=-1, keepdims=True) + 1e-6)
    assert v.shape[1] == value_heads
    return [qk[:, :key_heads] / dim**0.5, qk[:, key_heads:], v, padded[case.rows :]]


Kernel = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="module")
def on_cuda(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """The CUDA source, compiled for the CPU with every case's constants as MLX would write them."""
    library = cuda.compiled(tmp_path_factory.mktemp("cuda"), "".join(map(functions, range(len(CASES)), CASES)))
    return lambda case, arrays, spans=(): run(library, CASES.index(case), case, arrays, spans or (arrays[1].shape[0],))


def functions(number: int, case: Case) -> str:
    """The kernel of a case, and `run_<number>` that runs it block by block."""
    constants = {"KEY_HEADS": case.heads.key_heads, "VALUE_HEADS": case.heads.value_heads, "DIM": case.heads.key_dim, "WIDTH": case.width}
    return f"""
namespace case_{number} {{
typedef {TYPES[case.dtype]} T;
{cuda.written(constants | {"THREADS": THREADS, "ONE_OVER_EPS": module.ONE_OVER_EPS})}
static const T *tail, *x, *weight;
static const int *x_shape, *starts;
static T *q, *k, *v, *after;
void run() {{
{cuda.body("delta_inputs")}
}}
extern "C" void run_{number}(const int* shape_, const int* starts_, const T* tail_, const T* x_, const T* weight_, T* q_, T* k_, T* v_,
    T* after_) {{
  x_shape = shape_, starts = starts_, tail = tail_, x = x_, weight = weight_, q = q_, k = k_, v = v_, after = after_;
  const int warps = x_shape[0] * (2 * KEY_HEADS + VALUE_HEADS), blocks = (32 * warps + THREADS - 1) / THREADS;
  for (int block = 0; block < blocks; ++block) blockIdx = {{block, 0}}, fibres.run(THREADS, run);
}}
}}
"""


def run(library: ctypes.CDLL, number: int, case: Case, arrays: Arrays, spans: Sequence[int]) -> list[np.ndarray]:
    """In float32. The outputs are poisoned before; the number of rows is that of x, whatever the case."""
    shape, rows, heads = np.array(arrays[1].shape, np.int32), arrays[1].shape[0], case.heads
    shapes = [(rows, heads.key_heads, heads.key_dim)] * 2 + [(rows, heads.value_heads, heads.value_dim), arrays[0].shape]
    fill = (0x7FC0, np.uint16) if case.dtype == mx.bfloat16 else (np.nan, np.float32)
    found = [np.full(s, *fill) for s in shapes]
    starts = np.array([0, *accumulate(spans)], np.int32)
    getattr(library, f"run_{number}")(*cuda.pointers(shape, starts, *map(cuda.bits, arrays), *found))
    return [cuda.floats(a) if a.dtype == np.uint16 else a for a in found]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_both_agree_with_float64(on_cuda: Kernel, case: Case) -> None:
    arrays = given(case)
    assert not has_cuda_kernel(case.dtype, case.heads)
    assert errors(mx.Device(mx.cpu, 0)) == []
    expected, tolerance = inputs_in_float64(case, arrays), 1e-5 if case.dtype == mx.float32 else 0.004
    plainly = [np.array(a.astype(mx.float32)) for a in portable(*arrays, case.heads)]
    for ours, plain, right in zip(on_cuda(case, arrays), plainly, expected, strict=True):
        assert np.abs(ours - right).max() <= tolerance * np.abs(right).max()
        assert np.abs(plain - right).max() <= 10 * tolerance * np.abs(right).max()  # rounds after every operation


def test_rows_in_parts_have_the_same_bits(on_cuda: Kernel) -> None:
    case = CASES[2]
    tail, x, weight = given(case)
    whole, parts = on_cuda(case, [tail, x, weight]), []
    for start, stop in ((0, 1), (1, 3), (3, 7)):
        *rows, after = on_cuda(case, [tail, x[start:stop], weight])
        tail, parts = mx.array(after), [*parts, rows]
    assert all(np.array_equal(np.concatenate(p), w) for p, w in zip(zip(*parts, strict=True), whole[:3], strict=True))
    assert np.array_equal(after, whole[3])


def test_several_sequences_have_the_bits_of_each_alone(on_cuda: Kernel) -> None:
    case, spans = CASES[2], (1, 4, 2)
    tail, x, weight = given(case)
    tails = mx.stack([tail, 2 * tail, -tail])
    together, starts = on_cuda(case, [tails, x, weight], spans), [0, *accumulate(spans)]
    for j, (start, stop) in enumerate(pairwise(starts)):
        *rows, after = on_cuda(case, [tails[j], x[start:stop], weight])
        assert all(np.array_equal(part[start:stop], own) for part, own in zip(together[:3], rows, strict=True))
        assert np.array_equal(together[3][j], after)
