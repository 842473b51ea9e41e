"""Logarithms of the softmax of each row. Knows arrays, nothing of tokens."""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels import cpu
from forerun.kernels.difference import difference


def log_softmax(x: mx.array) -> mx.array:
    """x [rows, n] float32 minus the logarithm of the sum of its exponentials; NaN throughout a row without a distribution."""
    kernels = cpu.extension()
    return kernels.log_softmax(x) if kernels else x - mx.logsumexp(x, axis=-1, keepdims=True)


def errors(device: mx.Device) -> list[float]:
    """Relative errors against MLX's sum of exponentials for rows of several lengths; empty without the CPU kernels."""
    with mx.stream(device):
        return [_error(size) for size in (100, 5000, 250_000)] if cpu.extension() else []


def _error(size: int) -> float:
    x = 4 * mx.random.normal((2, size), key=mx.random.key(0))
    return difference([log_softmax(x)], [x - mx.logsumexp(x, axis=-1, keepdims=True)])
