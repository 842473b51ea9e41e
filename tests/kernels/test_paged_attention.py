"""Attention over pages: the portable form has the bits of one buffer; the CUDA source, run on the CPU, agrees with float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from tests.kernels import cuda

from forerun.kernels.attention import BLOCK_KEYS
from forerun.kernels.numerics import EXACT, FAST, Numerics
from forerun.kernels.paged_attention import ONE_PAGE_TOKENS, Pages, errors, has_cuda_kernel, portable


class Case(NamedTuple):
    """A pass of `rows` rows that ends at `length` tokens; parts: partitions of the keys."""

    rows: int
    heads: int
    kv_heads: int
    dim: int
    block_tokens: int
    first: int
    length: int
    parts: int


CASES = (
    Case(rows=1, heads=4, kv_heads=2, dim=64, block_tokens=16, first=0, length=1, parts=3),
    Case(rows=1, heads=4, kv_heads=2, dim=64, block_tokens=16, first=1, length=1, parts=3),
    Case(rows=2, heads=4, kv_heads=2, dim=64, block_tokens=32, first=1, length=33, parts=1),
    Case(rows=4, heads=8, kv_heads=2, dim=128, block_tokens=64, first=1, length=300, parts=4),
    Case(rows=8, heads=6, kv_heads=1, dim=256, block_tokens=256, first=0, length=700, parts=3),
    Case(rows=3, heads=2, kv_heads=1, dim=256, block_tokens=ONE_PAGE_TOKENS, first=0, length=257, parts=2),
)


class Inputs(NamedTuple):
    q: mx.array
    keys: mx.array
    values: mx.array
    blocks: mx.array
    positions: mx.array


def inputs(case: Case, dtype: mx.Dtype) -> Inputs:
    """Pages in random order among those of other sequences."""
    num_blocks = 1 if case.block_tokens == ONE_PAGE_TOKENS else -(-case.length // case.block_tokens)
    order = np.random.default_rng(0).permutation(num_blocks + 2)[:num_blocks] if case.block_tokens != ONE_PAGE_TOKENS else [0]
    num_places = case.length + 5 if case.block_tokens == ONE_PAGE_TOKENS else (num_blocks + 2) * case.block_tokens
    shapes = ((case.heads, case.rows, case.dim), *[(case.kv_heads, num_places, case.dim)] * 2)
    q, keys, values = ((2 * mx.random.normal(s, key=mx.random.key(i))).astype(dtype) for i, s in enumerate(shapes))
    return Inputs(q, keys, values, mx.array(order, dtype=mx.int32), mx.arange(case.length - case.rows, case.length, dtype=mx.int32))


def attention_in_float64(case: Case, given: Inputs) -> np.ndarray:
    """In float64, a row at a time, [heads, rows, dim]."""
    q, keys, values = (np.array(x.astype(mx.float32), dtype=np.float64) for x in given[:3])
    blocks, out = np.array(given.blocks), np.zeros(q.shape)
    for row, position in enumerate(given.positions.tolist()):  # type: ignore[arg-type]
        seen = np.arange(min(case.first, position), position + 1)
        at = blocks[seen // case.block_tokens] * case.block_tokens + seen % case.block_tokens
        for head in range(case.heads):
            of = head // (case.heads // case.kv_heads)
            scores = keys[of, at] @ q[head, row] / case.dim**0.5
            weights = np.exp(scores - scores.max())
            out[head, row] = weights @ values[of, at] / weights.sum()
    return out


@pytest.mark.parametrize("numerics", [EXACT, FAST], ids=lambda numerics: numerics.name)
@pytest.mark.parametrize("stop", [None, 600])
def test_the_portable_form_has_the_bits_of_one_buffer(numerics: Numerics, stop: int | None) -> None:
    case = Case(rows=3, heads=4, kv_heads=2, dim=16, block_tokens=64, first=1, length=600, parts=1)
    given = inputs(case, mx.float32)
    order = given.blocks.tolist() + [b for b in range(12) if b not in given.blocks.tolist()]
    blocks = mx.array(order, dtype=mx.int32)
    capacity = 12 * 64 if stop is None or numerics is EXACT else 600
    assert capacity % BLOCK_KEYS == 0 or numerics is FAST
    buffers = [x.reshape(2, 12, 64, 16)[:, blocks].reshape(2, 12 * 64, 16)[:, :capacity] for x in (given.keys, given.values)]
    expected = numerics.attention(given.q, *buffers, given.positions, 1)
    pages = Pages(given.keys, given.values, blocks, 64)
    assert mx.array_equal(portable(given.q, pages, given.positions, stop, 1, numerics), expected)
    assert np.abs(np.array(expected) - attention_in_float64(case, given)).max() < 1e-5


def test_the_kernel_does_not_run_here() -> None:
    assert not has_cuda_kernel(mx.zeros((2, 1, 64), mx.bfloat16), mx.zeros((1, 1, 64), mx.bfloat16), 1)
    assert errors(mx.Device(mx.cpu, 0)) == []


Kernel = Callable[[Case, Inputs], np.ndarray]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The CUDA source, compiled for the CPU with every case's constants as MLX would write them."""
    return cuda.compiled(tmp_path_factory.mktemp("cuda"), "".join(map(functions, range(len(CASES)), CASES)))


@pytest.fixture(scope="module")
def on_cuda(library: ctypes.CDLL) -> Kernel:
    return lambda case, given: run(library, CASES.index(case), case, given._replace(blocks=given.blocks[None]), [case.rows])


def functions(number: int, case: Case) -> str:
    """Both kernels of a case, and `run_<number>` that runs them block by block."""
    tiles = -(-case.rows * case.heads // case.kv_heads // 16)
    constants = {"ROWS": case.rows, "HEADS": case.heads, "KV_HEADS": case.kv_heads, "DIM": case.dim, "TILES": tiles}
    constants |= {"PARTS": case.parts, "BLOCK_TOKENS": case.block_tokens, "FIRST": case.first}
    return f"""
namespace case_{number} {{
{cuda.written(constants)}
static const __nv_bfloat16 *q, *keys, *values;
static const int *blocks, *positions, *starts, *keys_shape, *q_shape, *blocks_shape;
static float *partial, *scale;
static __nv_bfloat16* out;
void run_partition() {{
{cuda.body("paged_attention_partition")}
}}
void run_join() {{
{cuda.body("paged_attention_join")}
}}
extern "C" void run_{number}(int sequences, const __nv_bfloat16* q_, const int* q_shape_, const __nv_bfloat16* keys_, const int* shape_,
    const __nv_bfloat16* values_, const int* blocks_, const int* blocks_shape_, const int* positions_, const int* starts_,
    float* partial_, float* scale_, __nv_bfloat16* out_) {{
  q = q_, q_shape = q_shape_, keys = keys_, keys_shape = shape_, values = values_, blocks = blocks_, blocks_shape = blocks_shape_;
  positions = positions_, starts = starts_, partial = partial_, scale = scale_, out = out_;
  for (int z = 0; z < sequences; ++z)
    for (int y = 0; y < KV_HEADS; ++y)
      for (int x = 0; x < PARTS; ++x) blockIdx = {{x, y, z}}, fibres.run(128, run_partition);
  gridDim = {{q_shape[0] * HEADS, 1}};
  for (int x = 0; x < q_shape[0] * HEADS; ++x) blockIdx = {{x, 0}}, fibres.run(DIM, run_join);
}}
}}
"""


def run(library: ctypes.CDLL, number: int, case: Case, given: Inputs, spans: Sequence[int]) -> np.ndarray:
    """[heads, rows, dim] float32. The outputs are poisoned before. given.blocks: [sequences, pages]."""
    q, keys, values = (cuda.bits(x) for x in (given.q.swapaxes(0, 1), given.keys, given.values))
    blocks, positions, starts = np.array(given.blocks), np.array(given.positions), np.array([0, *accumulate(spans)], np.int32)
    shapes = [np.array(x.shape, np.int32) for x in (q, keys, blocks)]
    partial = np.full((case.parts, len(q), case.heads, case.dim), np.nan, np.float32)
    scale, out = np.full((*partial.shape[:3], 2), np.nan, np.float32), np.full(partial.shape[1:], 0x7FC0, np.uint16)
    order = (q, shapes[0], keys, shapes[1], values, blocks, shapes[2], positions, starts, partial, scale, out)
    getattr(library, f"run_{number}")(len(spans), *cuda.pointers(*order))
    return cuda.floats(out).swapaxes(0, 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rows}x{case.heads}of{case.kv_heads}d{case.dim}n{case.length}")
def test_the_cuda_kernel_agrees_with_float64(on_cuda: Kernel, case: Case) -> None:
    given = inputs(case, mx.bfloat16)
    expected = attention_in_float64(case, given)
    assert np.abs(on_cuda(case, given) - expected).max() < 0.01 * np.abs(expected).max()


def test_keys_beyond_the_last_row_are_not_read(on_cuda: Kernel) -> None:
    case = CASES[3]
    given = inputs(case, mx.bfloat16)
    row = int(given.blocks[-1]) * case.block_tokens + case.length % case.block_tokens
    for pool in (given.keys, given.values):
        pool[:, row : row + case.block_tokens - case.length % case.block_tokens] = 1e4
    expected = attention_in_float64(case, given)
    assert np.abs(on_cuda(case, given) - expected).max() < 0.01 * np.abs(expected).max()


def test_several_sequences_have_the_bits_of_each_alone(library: ctypes.CDLL, on_cuda: Kernel) -> None:
    """Of unequal lengths and rows, one without any; the pages of the shorter ones are padded."""
    case, lengths, spans = CASES[3], (300, 77, 130, 5), (4, 0, 2, 3)
    given, num_blocks = inputs(case, mx.bfloat16), -(-case.length // case.block_tokens)
    tables = mx.stack([mx.roll(given.blocks, j) for j in range(len(spans))])
    positions = [mx.arange(length - rows, length, dtype=mx.int32) for length, rows in zip(lengths, spans, strict=True)]
    q = mx.random.normal((case.heads, sum(spans), case.dim), key=mx.random.key(9)).astype(mx.bfloat16)
    assert tables.shape == (4, num_blocks)
    together = run(library, 3, case, Inputs(q, given.keys, given.values, tables, mx.concatenate(positions)), spans)
    starts = [0, *accumulate(spans)]
    for j, rows in enumerate(spans):
        if rows:
            own = Inputs(q[:, starts[j] : starts[j] + rows], given.keys, given.values, tables[j][None], positions[j])
            assert np.array_equal(together[:, starts[j] : starts[j] + rows], run(library, 3, case, own, [rows]))
            assert np.isfinite(together[:, starts[j] : starts[j] + rows]).all()
