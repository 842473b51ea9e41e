"""What the products of quantised weights cost for few rows and for many, by mode, beside bfloat16. Knows kernels and arrays alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from on_gpu.report import chain
from on_gpu.shapes import noise

MODES: dict[str, dict[str, Any]] = {
    "4 bits by 32": {"bits": 4, "group_size": 32},
    "4 bits by 64": {"bits": 4, "group_size": 64},
    "8 bits by 32": {"bits": 8, "group_size": 32},
    "mxfp4": {"mode": "mxfp4"},
    "mxfp8": {"mode": "mxfp8"},
    "nvfp4": {"mode": "nvfp4"},
}


def products(out: int, inner: int, rows: int, enough_bytes: int) -> dict[str, Any]:
    """Microseconds of x [rows, inner] @ W [out, inner].T in bfloat16 and in each mode, over weights of `enough_bytes` in turn."""
    copies = max(2, min(32, enough_bytes // (2 * out * inner)))
    weights = [noise(mx.zeros((out, inner), mx.bfloat16), i) for i in range(copies)]
    x = noise(mx.zeros((rows, inner), mx.bfloat16), 99)
    mx.eval(weights, x)
    found = {"bfloat16": _timed(lambda i: x @ weights[i].T, copies, weights[0].nbytes)}
    for name, mode in MODES.items():
        found[name] = _quantised(x, weights, mode)
    return found


def _quantised(x: mx.array, weights: list[mx.array], mode: dict[str, Any]) -> dict[str, Any]:
    packed = [mx.quantize(weight, **mode) for weight in weights]
    mx.eval(packed)
    right = x.astype(mx.float32) @ mx.dequantize(*packed[0], **mode).astype(mx.float32).T
    error = mx.abs(mx.quantized_matmul(x, *packed[0], transpose=True, **mode) - right).max() / mx.abs(right).max()
    timed = _timed(
        lambda i: mx.quantized_matmul(x, *packed[i], transpose=True, **mode), len(weights), sum(part.nbytes for part in packed[0])
    )
    return timed | {"largest_error": float(error)}


def _timed(run: Callable[[int], mx.array], copies: int, num_bytes: int) -> dict[str, Any]:
    us = chain(run, copies)
    return {"us": us, "tb_per_s": round(num_bytes / us / 1e6, 3)}
