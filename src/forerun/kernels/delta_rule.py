"""The gated delta rule with the fastest kernel of the device. Knows rows of one sequence, nothing of layers or caches.

`on_cuda` is a kernel that runs row after row with the state in registers: the prefix property holds bit for bit, and any number of rows
takes one launch (MLX's own falls back to array operations there). Elsewhere `gated_delta.chunks`. The rule is in gated_delta.py.
"""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels import gated_delta
from forerun.kernels.cuda_source import is_cuda, kernel
from forerun.kernels.difference import difference

KEY_DIMS = (64, 128)
_THREADS = 128
_LANES = 8


def delta_rule(q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    """By `on_cuda` where it runs, else by `gated_delta.chunks`. Arguments and results as in `gated_delta.steps`."""
    rule = on_cuda if has_cuda_kernel(q, v) else gated_delta.chunks
    return rule(q, k, v, g, beta, state)


def has_cuda_kernel(q: mx.array, v: mx.array) -> bool:
    """Whether the CUDA kernel runs for q [rows, key_heads, key_dim] and v [rows, value_heads, value_dim] on the default device."""
    rows, _, value_dim = v.shape
    has_size = rows > 0 and q.shape[2] in KEY_DIMS and value_dim % (_THREADS // _LANES) == 0
    return has_size and q.dtype == v.dtype and q.dtype in (mx.bfloat16, mx.float32) and is_cuda()


def on_cuda(q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    """The CUDA kernel: sums in float32, y in the dtype of v. Arguments as in `gated_delta.steps`; only if `has_cuda_kernel`."""
    _, key_heads, key_dim = q.shape
    _, value_heads, value_dim = v.shape
    constants = {"KEY_HEADS": key_heads, "KEY_DIM": key_dim, "VALUE_HEADS": value_heads, "VALUE_DIM": value_dim, "THREADS": _THREADS}
    y, after = kernel("delta_rule", ("q", "k", "v", "g", "beta", "state"), ("y", "after"))(
        inputs=[q, k, v, g, beta, state],
        template=[("T", v.dtype), *constants.items()],
        grid=(value_dim * _LANES, value_heads, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[v.shape, state.shape],
        output_dtypes=[v.dtype, mx.float32],
    )
    return y, after


def errors(device: mx.Device) -> list[float]:
    """`error` for shapes of real models; empty where the kernel does not run."""
    with mx.stream(device):
        if not has_cuda_kernel(mx.zeros((1, 1, 64)), mx.zeros((1, 1, 64))):
            return []
        shapes = ((1, 16, 48, 128), (4, 16, 48, 128), (200, 16, 16, 128), (7, 4, 8, 64))
        return [error(*shape, dtype) for shape in shapes for dtype in (mx.bfloat16, mx.float32)]


def error(rows: int, key_heads: int, value_heads: int, dim: int, dtype: mx.Dtype) -> float:
    """Relative error of `on_cuda` against `gated_delta.steps` in float32 on random rows, of y and state; see `difference`."""
    shapes = ((rows, key_heads, dim), (rows, key_heads, dim), (rows, value_heads, dim), *[(rows, value_heads)] * 2, (value_heads, dim, dim))
    q, k, v, g, beta, state = (mx.random.normal(s, key=mx.random.key(i)) for i, s in enumerate(shapes))
    q, k, v = (x.astype(dtype) for x in (q * dim**-0.5, k / mx.linalg.norm(k, axis=-1, keepdims=True), v))
    g, beta, state = mx.exp(-0.1 * mx.abs(g)), mx.sigmoid(beta).astype(dtype), 0.1 * state
    actual = on_cuda(q, k, v, g, beta, state)
    q, k, v, beta = (x.astype(mx.float32) for x in (q, k, v, beta))
    return difference(actual, gated_delta.steps(q, k, v, g, beta, state))
