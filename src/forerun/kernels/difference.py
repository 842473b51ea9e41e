"""How far a fast kernel is from its reference. Knows arrays."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


def difference(found: Sequence[mx.array], expected: Sequence[mx.array]) -> float:
    """The largest difference of an array from what was expected, over the largest value expected there. NaN where something is not a
    number.
    """
    parts = [mx.abs(a.astype(mx.float32) - b).max() / mx.abs(b).max() for a, b in zip(found, expected, strict=True)]
    return float(mx.stack(parts).max())
