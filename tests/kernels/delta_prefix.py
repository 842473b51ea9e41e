"""The gated delta rule of kernels/gated_delta.py, row by row in float64."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np


def plain(given: Sequence[mx.array]) -> tuple[np.ndarray, np.ndarray]:
    """y and the last state, for q, k, v, g, beta, state."""
    q, k, v, g, beta, state = (np.array(x.astype(mx.float32), dtype=np.float64) for x in given)
    s, out = state.copy(), np.zeros(v.shape)
    for row in range(len(q)):
        for head in range(v.shape[1]):
            of = head // (v.shape[1] // k.shape[1])
            s[head] *= g[row, head]
            s[head] += beta[row, head] * np.outer(v[row, head] - s[head] @ k[row, of], k[row, of])
            out[row, head] = s[head] @ q[row, of]
    return out, s
