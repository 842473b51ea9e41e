"""The inputs of the delta rule from the projections of a gated DeltaNet layer: short causal convolution, silu, q and k normalised.

`portable` uses array operations; `on_cuda` is one kernel launch instead of a dozen, also for several sequences. Knows rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from forerun.kernels.causal_conv import causal_conv
from forerun.kernels.cuda_source import is_cuda, kernel
from forerun.kernels.difference import difference
from forerun.kernels.row_span import split_rows, starts_of

ONE_OVER_EPS = 1_000_000
_THREADS = 128


class Heads(NamedTuple):
    """The order of channels: queries, then keys, then values, head by head."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


class Inputs(NamedTuple):
    """q, k [rows, key_heads, key_dim], v [rows, value_heads, value_dim]; the next tail. The norm of q is key_dim^-1/2, that of k is 1."""

    q: mx.array
    k: mx.array
    v: mx.array
    tail: mx.array


def has_cuda_kernel(dtype: mx.Dtype, heads: Heads) -> bool:
    """Whether the CUDA kernel runs for rows and weights of this dtype on the default device."""
    return heads.key_dim == heads.value_dim and heads.key_dim % 32 == 0 and dtype in (mx.bfloat16, mx.float32) and is_cuda()


def portable(tail: mx.array, x: mx.array, weight: mx.array, heads: Heads) -> Inputs:
    """The reference: from x [rows, channels] after tail [width - 1, channels] with conv weight [width, channels]."""
    mixed, tail = causal_conv(tail, x, weight)
    dim, qk_heads = heads.key_dim, 2 * heads.key_heads
    qk, v = mx.split(mixed * mx.sigmoid(mixed), (qk_heads * dim,), axis=-1)
    qk = mx.fast.rms_norm(qk.reshape(-1, qk_heads, dim), None, 1 / ONE_OVER_EPS / dim) * dim**-0.5
    q, k = mx.split(qk, 2, axis=1)
    return Inputs(q * dim**-0.5, k, v.reshape(-1, heads.value_heads, heads.value_dim), tail)


def on_cuda(tails: mx.array, x: mx.array, weight: mx.array, heads: Heads, spans: Sequence[int]) -> Inputs:
    """The CUDA kernel: sums in float32, results in the dtype of x; only if `has_cuda_kernel`. Arguments as `portable`, but for several
    sequences: spans[j] rows of x, at least one, after tails[j] of `tails` [sequences, width - 1, channels].
    """
    rows, all_heads = x.shape[0], 2 * heads.key_heads + heads.value_heads
    constants = {"KEY_HEADS": heads.key_heads, "VALUE_HEADS": heads.value_heads, "DIM": heads.key_dim, "WIDTH": weight.shape[0]}
    constants |= {"ONE_OVER_EPS": ONE_OVER_EPS, "THREADS": _THREADS}
    keys, values = (rows, heads.key_heads, heads.key_dim), (rows, heads.value_heads, heads.value_dim)
    arrays = kernel("delta_inputs", ("tail", "x", "weight", "starts"), ("q", "k", "v", "after"))(
        inputs=[tails, x, weight, starts_of(tuple(spans))],
        template=[("T", x.dtype), *constants.items()],
        grid=(-(-rows * all_heads * 32 // _THREADS) * _THREADS, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[keys, keys, values, tails.shape],
        output_dtypes=[x.dtype] * 4,
    )
    return Inputs(*arrays)


def errors(device: mx.Device) -> list[float]:
    """`error` for shapes of real models; empty where the kernel does not run."""
    with mx.stream(device):
        if not has_cuda_kernel(mx.float32, Heads(1, 32, 1, 32)):
            return []
        cases = (([1], Heads(16, 128, 48, 128)), ([4, 1], Heads(16, 128, 16, 128)), ([70, 2, 5], Heads(4, 64, 8, 64)))
        return [error(spans, heads, dtype) for spans, heads in cases for dtype in (mx.bfloat16, mx.float32)]


def error(spans: Sequence[int], heads: Heads, dtype: mx.Dtype) -> float:
    """Relative error of `on_cuda` against `portable` in float32 on random rows; see `difference`."""
    channels = 2 * heads.key_heads * heads.key_dim + heads.value_heads * heads.value_dim
    shapes = ((len(spans), 3, channels), (sum(spans), channels), (4, channels))
    tails, x, weight = (mx.random.normal(s, key=mx.random.key(i)).astype(dtype) for i, s in enumerate(shapes))
    actual = on_cuda(tails, x, weight, heads, spans)
    tails, x, weight = (each.astype(mx.float32) for each in (tails, x, weight))
    each = [portable(tail, rows, weight, heads) for tail, rows in zip(tails, split_rows(x, spans), strict=True)]
    q, k, v, after = zip(*each, strict=True)
    return difference(actual, [*(mx.concatenate(list(rows)) for rows in (q, k, v)), mx.stack(list(after))])
