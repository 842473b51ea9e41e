"""The relative error of a fast kernel against its reference. Knows arrays."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


def difference(actual: Sequence[mx.array], expected: Sequence[mx.array]) -> float:
    """The maximum over all arrays of max |actual - expected| / max |expected|. NaN if a value is NaN."""
    parts = [mx.abs(a.astype(mx.float32) - b).max() / mx.abs(b).max() for a, b in zip(actual, expected, strict=True)]
    return float(mx.stack(parts).max())
