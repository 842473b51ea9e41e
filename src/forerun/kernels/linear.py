"""Products with plain matrices, one or one per expert. Knows arrays, nothing of layers."""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels import cpu


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
