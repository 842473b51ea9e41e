"""NumPy models of what the lanes compute: float32 fma, and sums in sixteen lanes."""

from __future__ import annotations

import numpy as np


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32 arrays, rounded once: the float64 sum is rounded to odd, so that rounding it to float32 is the only rounding."""
    product, c = np.asarray(a, np.float64) * b, np.asarray(c, np.float64)
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)
    is_even = total.view(np.int64) % 2 == 0
    odd = np.where((lost != 0) & is_even, np.nextafter(total, np.copysign(np.inf, lost)), total)
    return odd.astype(np.float32)


def sum_lanes(lanes: np.ndarray) -> np.ndarray:
    """The sums of lanes [..., 16] float32."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x [rows, k] times the transposed w [n, k], float32: lane l adds the terms l, l + 16, ... in order."""
    pad = [(0, 0), (0, -x.shape[1] % 16)]
    x, w = np.pad(x, pad), np.pad(w, pad)
    lanes = np.zeros((len(x), len(w), 16), np.float32)
    for i in range(0, x.shape[1], 16):
        lanes = fma(w[None, :, i : i + 16], x[:, None, i : i + 16], lanes)
    return sum_lanes(lanes)
