"""Products with quantised weights against float64; the CUDA source, run on the CPU, gives a row the same bits with any other rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from tests.kernels import cuda

from forerun.kernels import cpu
from forerun.kernels import quantised as module
from forerun.kernels.quantised import PackedMatrix, Scheme, dequantise, errors, has_cuda_kernel, product, quantise

OUT, INNER = 32, 768


class Case(NamedTuple):
    rows: int
    bits: int
    group: int


CASES = (Case(1, 4, 32), Case(4, 4, 64), Case(1, 4, 128), Case(8, 4, 128), Case(1, 8, 32), Case(3, 8, 64), Case(8, 8, 128))
Kernel = Callable[[Case, mx.array, PackedMatrix], np.ndarray]


def given(case: Case) -> tuple[mx.array, PackedMatrix]:
    x, w = (mx.random.normal(shape, key=mx.random.key(i)).astype(mx.bfloat16) for i, shape in enumerate(((case.rows, INNER), (OUT, INNER))))
    return x, quantise(w, Scheme("affine", case.bits, case.group))


def product_in_float64(x: mx.array, weight: PackedMatrix) -> np.ndarray:
    """In float64, from the packed bits."""
    packed, bits = np.array(weight.integers), weight.scheme.bits
    integers = np.stack([packed >> shift & (1 << bits) - 1 for shift in range(0, 32, bits)], axis=-1).reshape(OUT, INNER)
    assert weight.biases is not None
    scales, biases = (np.repeat(np.array(a.astype(mx.float32), np.float64), weight.scheme.group_size, axis=1) for a in weight[1:3])
    return np.array(x.astype(mx.float32), np.float64) @ (scales * integers + biases).T


@pytest.fixture(scope="module")
def on_cuda(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """The CUDA source, compiled for the CPU with every case's constants as MLX would write them."""
    library = cuda.compiled(tmp_path_factory.mktemp("cuda"), "".join(map(functions, range(len(CASES)), CASES)))

    def run(case: Case, x: mx.array, weight: PackedMatrix) -> np.ndarray:
        assert weight.biases is not None
        y, shapes = np.full((case.rows, OUT), 0x7FC0, np.uint16), [np.array(a.shape, np.int32) for a in (x, weight.integers)]
        getattr(library, f"product_{CASES.index(case)}")(*cuda.pointers(*shapes, *map(cuda.bits, (x, *weight[:3])), y))
        return cuda.floats(y)

    return run


def functions(number: int, case: Case) -> str:
    """The kernel of a case, and `product_<number>` that runs it block by block."""
    constants = {"ROWS": case.rows, "BITS": case.bits, "GROUP": case.group, "THREADS": module._THREADS}
    return f"""
namespace case_{number} {{
{cuda.written(constants)}
static const __nv_bfloat16 *x, *scales, *biases;
static const unsigned* packed;
static const int *x_shape, *packed_shape;
static __nv_bfloat16* y;
void run() {{
{cuda.body("quantised_rows")}
}}
extern "C" void product_{number}(const int* xs, const int* ps, const __nv_bfloat16* x_, const unsigned* packed_,
                                 const __nv_bfloat16* scales_, const __nv_bfloat16* biases_, __nv_bfloat16* y_) {{
  x_shape = xs, packed_shape = ps, x = x_, packed = packed_, scales = scales_, biases = biases_, y = y_;
  for (int block = 0; block < packed_shape[0] / 16; ++block) blockIdx = {{block, 0}}, fibres.run(THREADS, run);
}}
}}
"""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_agree_with_float64(on_cuda: Kernel, case: Case) -> None:
    x, weight = given(case)
    assert not has_cuda_kernel(x, weight)
    right = product_in_float64(x, weight)
    assert np.abs(on_cuda(case, x, weight) - right).max() <= 0.006 * np.abs(right).max()  # weights and results rounded to bfloat16
    plain = np.array(product(x.astype(mx.float32), weight._replace(scales=_f32(weight.scales), biases=_f32(weight.biases))))
    assert np.abs(plain - right).max() <= 1e-5 * np.abs(right).max()
    assert np.abs(np.array(x.astype(mx.float32) @ dequantise(weight, mx.float32).T) - right).max() <= 1e-5 * np.abs(right).max()


def test_a_row_has_the_same_bits_alone_and_among_others(on_cuda: Kernel) -> None:
    one, eight = Case(1, 4, 128), Case(8, 4, 128)
    x, weight = given(eight)
    alone = [on_cuda(one, x[i : i + 1], weight) for i in range(8)]
    assert np.array_equal(np.concatenate(alone), on_cuda(eight, x, weight))


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_other_modes_round_trip(mode: str) -> None:
    scheme = Scheme(mode, 8 if mode == "mxfp8" else 4, 16 if mode == "nvfp4" else 32)
    w = mx.random.normal((OUT, INNER), key=mx.random.key(5))
    weight = quantise(w, scheme)
    assert weight.biases is None
    x = mx.random.normal((3, INNER), key=mx.random.key(6))
    assert mx.allclose(product(x, weight), x @ dequantise(weight, mx.float32).T, atol=1e-3)
    assert float(mx.abs(dequantise(weight, mx.float32) - w).max()) < 1.0


def _f32(array: mx.array | None) -> mx.array:
    assert array is not None
    return array.astype(mx.float32)


def test_the_proof_covers_the_cpu() -> None:
    measured = errors(mx.Device(mx.cpu, 0))
    assert bool(measured) == (cpu.extension() is not None)
    assert all(error < 1e-5 for error in measured)


@pytest.mark.usefixtures("without_cpu_kernels")
def test_without_a_kernel_there_is_nothing_to_prove() -> None:
    assert errors(mx.Device(mx.cpu, 0)) == []
