"""Products with quantised weights, with the fastest kernel of the device. Knows arrays and schemes, nothing of layers or checkpoints.

On CUDA, MLX (0.32.4) takes as long for one row with 4-bit weights as with bfloat16, that much again for each further row, and minutes to
compile for many. `on_cuda` is a kernel for up to eight rows at about the cost of one, launched several times for some more; for many rows
the weight is dequantised.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from forerun.kernels import cpu
from forerun.kernels.cuda_source import is_cuda, kernel
from forerun.kernels.difference import difference
from forerun.kernels.row_span import joined_rows

MAX_ROWS = 8
SPLIT_ROWS = 48  # up to which launches of MAX_ROWS rows are faster than a product with the dequantised weight
_BITS = (4, 8)
_THREADS = 128
_OUTPUTS = 16


class Scheme(NamedTuple):
    """How `mx.quantize` packs a matrix: mode (affine, mxfp4, mxfp8, nvfp4), bits per weight, weights per scale."""

    mode: str
    bits: int
    group_size: int

    def __str__(self) -> str:
        return f"{self.bits} bit {self.mode}, groups of {self.group_size}"


class PackedMatrix(NamedTuple):
    """A weight [out, inner]: integers [out, inner * bits / 32] uint32; scales, and in mode affine biases, [out, inner / group_size]."""

    integers: mx.array
    scales: mx.array
    biases: mx.array | None
    scheme: Scheme


def quantise(weight: mx.array, scheme: Scheme) -> PackedMatrix:
    """weight [out, inner] quantised by MLX."""
    integers, scales, *biases = mx.quantize(weight, **scheme._asdict())
    return PackedMatrix(integers, scales, biases[0] if biases else None, scheme)


def dequantise(weight: PackedMatrix, dtype: mx.Dtype) -> mx.array:
    """The weight [out, inner] in dtype."""
    integers, scales, biases, scheme = weight
    if biases is not None:
        scales, biases = scales.astype(dtype), biases.astype(dtype)
    return mx.dequantize(integers, scales, biases, **scheme._asdict(), dtype=dtype)


def product(x: mx.array, weight: PackedMatrix) -> mx.array:
    """x [rows, inner] times the transposed weight: [rows, out] in the dtype of x."""
    if has_cpu_kernel(weight.scheme):
        return on_cpu(x, weight)
    if has_cuda_kernel(x, weight):
        parts = [on_cuda(x[start : start + MAX_ROWS], weight) for start in range(0, x.shape[0], MAX_ROWS)]
        return joined_rows(parts)
    if is_cuda():
        return x @ dequantise(weight, x.dtype).T
    integers, scales, biases, scheme = weight
    return mx.quantized_matmul(x, integers, scales, biases, transpose=True, **scheme._asdict())


def product_of_experts(x: mx.array, weight: PackedMatrix, experts: mx.array, *, is_sorted: bool) -> mx.array:
    """x[r, j] times the transposed weight of expert experts[r, j], [rows, chosen, out]; weight [experts, out, inner]. is_sorted: `experts`
    ascends, as it does for many products; then it is faster on CUDA to dequantise all experts.
    """
    if has_cpu_kernel(weight.scheme):
        return experts_on_cpu(x, weight, experts)
    if is_sorted and is_cuda():
        return mx.gather_mm(x[:, :, None], dequantise(weight, x.dtype).swapaxes(-1, -2), rhs_indices=experts, sorted_indices=True)[:, :, 0]
    how = weight.scheme._asdict()
    return mx.gather_qmm(x[:, :, None], *weight[:3], rhs_indices=experts, transpose=True, sorted_indices=is_sorted, **how)[:, :, 0]


def has_cpu_kernel(scheme: Scheme) -> bool:
    """Whether the CPU kernel runs for this scheme on the default device: exact, in float32, at any number of rows."""
    return scheme.mode == "affine" and scheme.bits in _BITS and scheme.group_size in (32, 64, 128) and cpu.extension() is not None


def on_cpu(x: mx.array, weight: PackedMatrix) -> mx.array:
    """The CPU kernel: w = fma(integer, scale, bias) in float32. Arguments as `product`; only if `has_cpu_kernel`."""
    kernels, (integers, scales, biases, scheme) = cpu.extension(), weight
    assert kernels is not None
    assert biases is not None
    return kernels.quantised_linear(x, integers, scales, biases, scheme.bits, scheme.group_size)


def experts_on_cpu(x: mx.array, weight: PackedMatrix, experts: mx.array) -> mx.array:
    """The CPU kernel of `product_of_experts`; only if `has_cpu_kernel`."""
    kernels, (integers, scales, biases, scheme) = cpu.extension(), weight
    assert kernels is not None
    assert biases is not None
    return kernels.quantised_linear_of_experts(x, integers, scales, biases, experts, scheme.bits, scheme.group_size)


def has_cuda_kernel(x: mx.array, weight: PackedMatrix) -> bool:
    """Whether the CUDA kernel runs for these on the default device, MAX_ROWS rows at a time."""
    (rows, inner), (mode, bits, group_size) = x.shape, weight.scheme
    is_scheme = mode == "affine" and bits in _BITS and group_size % 32 == 0
    has_size = 0 < rows <= SPLIT_ROWS and weight.integers.shape[0] % _OUTPUTS == 0 and inner % (512 // bits) == 0
    return is_scheme and has_size and x.dtype == weight.scales.dtype == mx.bfloat16 and is_cuda()


def on_cuda(x: mx.array, weight: PackedMatrix) -> mx.array:
    """The CUDA kernel: weights rounded to bfloat16, sums in float32. Arguments as `product`; only if `has_cuda_kernel`."""
    (rows, _), out = x.shape, weight.integers.shape[0]
    (y,) = kernel("quantised_rows", ("x", "packed", "scales", "biases"), ("y",))(
        inputs=[x, weight.integers, weight.scales, weight.biases],
        template=[("ROWS", rows), ("BITS", weight.scheme.bits), ("GROUP", weight.scheme.group_size), ("THREADS", _THREADS)],
        grid=(out // _OUTPUTS * _THREADS, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, out)],
        output_dtypes=[mx.bfloat16],
    )
    return y


def errors(device: mx.Device) -> list[float]:
    """`error` for shapes of real models; empty where the kernel does not run."""
    schemes = [Scheme("affine", bits, group) for bits in _BITS for group in (32, 64, 128)]
    with mx.stream(device):
        if has_cpu_kernel(schemes[0]):
            return [error(rows, 200, 1024, scheme) for scheme in schemes for rows in (1, 4, 40)]
        if not has_cuda_kernel(mx.zeros((1, 512), mx.bfloat16), quantise(mx.zeros((16, 512), mx.bfloat16), schemes[0])):
            return []
        shapes = [(1, 5120, 17_408), (4, 96, 5120), (3, 248_320, 1024), *[(8, 1024, 3584)] * 6]
        return [error(*shape, scheme) for shape, scheme in zip(shapes, [*[schemes[1]] * 3, *schemes], strict=True)]


def error(rows: int, out: int, inner: int, scheme: Scheme) -> float:
    """Relative error of the device's kernel against the product in float32 on random rows and weights; see `difference`."""
    x, w = (mx.random.normal(shape, key=mx.random.key(i)).astype(mx.bfloat16) for i, shape in enumerate(((rows, inner), (out, inner))))
    weight = quantise(w, scheme)
    expected = x.astype(mx.float32) @ dequantise(weight, mx.float32).T
    actual = on_cpu(x.astype(mx.float32), weight) if has_cpu_kernel(scheme) else on_cuda(x, weight)
    return difference([actual], [expected])
