"""Products with plain matrices, one or one per expert. Knows arrays, nothing of layers."""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels import cpu
from forerun.kernels.difference import difference


def linear(x: mx.array, weight: mx.array) -> mx.array:
    """x [rows, inner] times the transposed weight [out, inner]: [rows, out] in the dtype of x.

    On a CPU the weight may be bfloat16 or float16: the result has the bits of the float32 matrix that it stands for.
    """
    kernels = cpu.extension()
    return kernels.linear(x, weight) if kernels else x @ weight.T


def is_taken(weight: mx.array) -> bool:
    """Whether products take a matrix of this dtype as it is, in float32 on the default device."""
    return cpu.extension() is not None and weight.dtype in (mx.float32, mx.bfloat16, mx.float16)


def linear_of_experts(x: mx.array, weight: mx.array, experts: mx.array, *, is_sorted: bool) -> mx.array:
    """x[r, j] times the transposed weight of expert experts[r, j]: [rows, chosen, out]; x [rows, chosen or 1, inner], weight [experts, out,
    inner]. is_sorted: `experts` ascends, which is faster on a GPU.
    """
    kernels = cpu.extension()
    if kernels:
        return kernels.linear_of_experts(x, weight, experts)
    return mx.gather_mm(x[:, :, None], weight.swapaxes(-1, -2), rhs_indices=experts, sorted_indices=is_sorted)[:, :, 0]


def errors(device: mx.Device) -> list[float]:
    """`error` and `error_of_experts` for the dtypes of weights, few rows and many; empty where no kernel computes products."""
    with mx.stream(device):
        cases = [(rows, dtype) for rows in (1, 4, 70) for dtype in (mx.float32, mx.bfloat16, mx.float16)]
        return [measure(*case) for case in cases for measure in (error, error_of_experts)] if cpu.extension() else []


def error(rows: int, dtype: mx.Dtype) -> float:
    """Relative error of `linear` against MLX's product in float32 on random rows and weights; see `difference`."""
    x, weight = _random((rows, 1030), mx.float32), _random((300, 1030), dtype)
    return difference([linear(x, weight)], [x @ weight.astype(mx.float32).T])


def error_of_experts(rows: int, dtype: mx.Dtype) -> float:
    """As `error`, of `linear_of_experts`: two of three for each row."""
    x, weight = _random((rows, 1, 512), mx.float32), _random((3, 100, 512), dtype)
    experts = (mx.arange(rows)[:, None] + mx.arange(2)) % 3
    return difference(
        [linear_of_experts(x, weight, experts, is_sorted=False)], [(weight.astype(mx.float32)[experts] @ x[..., None])[..., 0]]
    )


def _random(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(len(shape))).astype(dtype)
