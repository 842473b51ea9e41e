"""RMS norm of each row, by itself or after an addition. Knows arrays, nothing of layers."""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels import cpu


def rms_norm(x: mx.array, gain: mx.array, eps: float) -> mx.array:
    """x [..., dim] divided by the root of its mean square plus eps, times gain [dim]."""
    kernels = cpu.extension()
    if kernels and _has_size(gain):
        return kernels.rms_norm(x, gain, eps)
    return mx.fast.rms_norm(x, gain, eps)


def add_rms_norm(x: mx.array, y: mx.array, gain: mx.array, eps: float) -> tuple[mx.array, mx.array]:
    """x + y, and its `rms_norm`."""
    kernels = cpu.extension()
    if kernels and _has_size(gain):
        return kernels.add_rms_norm(x, y, gain, eps)
    total = x + y
    return total, mx.fast.rms_norm(total, gain, eps)


def _has_size(gain: mx.array) -> bool:
    return gain.shape[0] % 16 == 0
