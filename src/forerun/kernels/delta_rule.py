"""The gated delta rule with the fastest kernel of the device. Knows rows of sequences, nothing of layers or caches.

`on_cuda` is a kernel that runs row after row with the state in registers: the prefix property holds bit for bit, and any number of rows
takes one launch (MLX's own falls back to array operations there). Elsewhere `gated_delta.chunks`. The rule is in gated_delta.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from forerun.kernels import gated_delta
from forerun.kernels.cuda_source import is_cuda, kernel
from forerun.kernels.difference import difference
from forerun.kernels.row_span import split_rows, starts_of

KEY_DIMS = (64, 128)
_THREADS = 128
_LANES = 8


def delta_rule(q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    """By `on_cuda` where it runs, else by `gated_delta.chunks`. Arguments and results as in `gated_delta.steps`."""
    if not has_cuda_kernel(v.dtype, q.shape[2], v.shape[2]):
        return gated_delta.chunks(q, k, v, g, beta, state)
    y, after = on_cuda(q, k, v, g, beta, state[None], [q.shape[0]])
    return y, after[0]


def has_cuda_kernel(dtype: mx.Dtype, key_dim: int, value_dim: int) -> bool:
    """Whether the CUDA kernel runs for q, k and v of this dtype on the default device."""
    return key_dim in KEY_DIMS and value_dim % (_THREADS // _LANES) == 0 and dtype in (mx.bfloat16, mx.float32) and is_cuda()


def on_cuda(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, states: mx.array, spans: Sequence[int]
) -> tuple[mx.array, mx.array]:
    """The CUDA kernel: sums in float32, y in the dtype of v; only if `has_cuda_kernel`. Arguments as in `gated_delta.steps`, but of several
    sequences: spans[j] rows, at least one, after states[j] of `states` [sequences, value_heads, value_dim, key_dim].
    """
    _, key_heads, key_dim = q.shape
    _, value_heads, value_dim = v.shape
    constants = {"KEY_HEADS": key_heads, "KEY_DIM": key_dim, "VALUE_HEADS": value_heads, "VALUE_DIM": value_dim, "THREADS": _THREADS}
    y, after = kernel("delta_rule", ("q", "k", "v", "g", "beta", "state", "starts"), ("y", "after"))(
        inputs=[q, k, v, g, beta, states, starts_of(tuple(spans))],
        template=[("T", v.dtype), *constants.items()],
        grid=(value_dim * _LANES, value_heads, len(spans)),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[v.shape, states.shape],
        output_dtypes=[v.dtype, mx.float32],
    )
    return y, after


def errors(device: mx.Device) -> list[float]:
    """`error` for shapes of real models; empty where the kernel does not run."""
    with mx.stream(device):
        if not has_cuda_kernel(mx.float32, 64, 64):
            return []
        shapes = (([1], 16, 48, 128), ([4, 1], 16, 48, 128), ([200], 16, 16, 128), ([7, 1, 3], 4, 8, 64))
        return [error(*shape, dtype) for shape in shapes for dtype in (mx.bfloat16, mx.float32)]


def error(spans: Sequence[int], key_heads: int, value_heads: int, dim: int, dtype: mx.Dtype) -> float:
    """Relative error of `on_cuda` against `gated_delta.steps` in float32 on random rows, of y and states; see `difference`."""
    rows, states = sum(spans), (len(spans), value_heads, dim, dim)
    shapes = ((rows, key_heads, dim), (rows, key_heads, dim), (rows, value_heads, dim), *[(rows, value_heads)] * 2, states)
    q, k, v, g, beta, state = (mx.random.normal(s, key=mx.random.key(i)) for i, s in enumerate(shapes))
    q, k, v = (x.astype(dtype) for x in (q * dim**-0.5, k / mx.linalg.norm(k, axis=-1, keepdims=True), v))
    g, beta, state = mx.exp(-0.1 * mx.abs(g)), mx.sigmoid(beta).astype(dtype), 0.1 * state
    actual = on_cuda(q, k, v, g, beta, state, spans)
    parts = zip(*(split_rows(x.astype(mx.float32), spans) for x in (q, k, v, g, beta)), state, strict=True)
    y, after = zip(*(gated_delta.steps(*part) for part in parts), strict=True)
    return difference(actual, [mx.concatenate(list(y)), mx.stack(list(after))])
