"""Depthwise causal convolution over rows: a sum of shifted products, so that each row is computed independently."""

from __future__ import annotations

import mlx.core as mx


def causal_conv(tail: mx.array, x: mx.array, weight: mx.array) -> tuple[mx.array, mx.array]:
    """Row i of the result is the weighted sum of rows i-width+1..i of `tail` followed by `x`.

    tail [width - 1, channels]: the inputs before x; x [rows, channels]; weight [width, channels].
    Returns [rows, channels] and the next tail.
    """
    rows, width = x.shape[0], weight.shape[0]
    padded = mx.concatenate([tail, x])
    total = padded[:rows] * weight[0]
    for j in range(1, width):
        total = total + padded[j : j + rows] * weight[j]
    return total, mx.contiguous(padded[rows:])
