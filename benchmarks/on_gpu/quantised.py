"""The cost of products with quantised weights, by scheme and implementation, next to bfloat16. Knows kernels and arrays alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from forerun.kernels.quantised import MAX_ROWS, PackedMatrix, Scheme, dequantise, has_cuda_kernel, on_cuda, quantise
from on_gpu.report import operation_us
from on_gpu.shapes import noise

SCHEMES = [Scheme("affine", 4, 32), Scheme("affine", 4, 64), Scheme("affine", 8, 32), Scheme("mxfp4", 4, 32), Scheme("nvfp4", 4, 16)]
SAMPLES_OUT = 64


def products(out: int, inner: int, rows: int, enough_bytes: int) -> dict[str, Any]:
    """Microseconds of x [rows, inner] @ W [out, inner].T in bfloat16 and in each scheme, over weights of `enough_bytes` in turn."""
    copies = max(2, min(32, enough_bytes // (2 * out * inner)))
    weights = [noise(mx.zeros((out, inner), mx.bfloat16), i) for i in range(copies)]
    x = noise(mx.zeros((rows, inner), mx.bfloat16), 99)
    mx.eval(weights, x)
    found: dict[str, Any] = {"bfloat16": _timed(lambda w: x @ w.T, weights, weights[0].nbytes)}
    for scheme in SCHEMES:
        packed = [quantise(weight, scheme) for weight in weights]
        mx.eval(packed)
        found[str(scheme)] = _variants(x, packed)
    return found


def _variants(x: mx.array, packed: list[PackedMatrix]) -> dict[str, Any]:
    """By our kernel, by MLX's own for few rows (for many it takes minutes to compile), and unpacked first."""
    num_bytes = sum(part.nbytes for part in packed[0][:3] if part is not None)
    variants: dict[str, Callable[[PackedMatrix], mx.array]] = {"unpacked": lambda w: x @ dequantise(w, x.dtype).T}
    if x.shape[0] < MAX_ROWS:
        variants["mlx"] = lambda w: mx.quantized_matmul(x, *w[:3], transpose=True, **w.scheme._asdict())
    if has_cuda_kernel(x, packed[0]):
        variants["kernel"] = lambda w: on_cuda(x, w)
    right = x.astype(mx.float32) @ dequantise(packed[0], mx.float32)[:SAMPLES_OUT].T
    return {name: _timed(variant, packed, num_bytes) | {"error": _error(variant(packed[0]), right)} for name, variant in variants.items()}


def _error(found: mx.array, right: mx.array) -> float:
    return float(mx.abs(found[:, :SAMPLES_OUT].astype(mx.float32) - right).max() / mx.abs(right).max())


def _timed(variant: Callable[[Any], mx.array], weights: Sequence[Any], num_bytes: int) -> dict[str, Any]:
    us = operation_us(lambda i: variant(weights[i]), len(weights))
    return {"us": us, "tb_per_s": round(num_bytes / us / 1e6, 3)}
