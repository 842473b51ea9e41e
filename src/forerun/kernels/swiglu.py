"""The gated activation silu(gate) * up over stacked halves. Knows arrays, nothing of layers."""

from __future__ import annotations

import mlx.core as mx

from forerun.kernels import cpu


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x)."""
    return x * mx.sigmoid(x)


def swiglu(x: mx.array) -> mx.array:
    """x [..., 2 width]: silu of the first half times the second, [..., width]."""
    kernels = cpu.extension()
    if kernels and x.shape[-1] % 32 == 0:
        return kernels.swiglu(x)
    gate, up = mx.split(x, 2, axis=-1)
    return silu(gate) * up
