"""Arrays as the host sees them. Whether writing through that view reaches the array depends on the device; it is tried, not assumed."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

Host = np.ndarray[tuple[int, ...], np.dtype[Any]]
NUMPY: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype("<u2"), "float16": np.dtype("<u2")}


def host(array: mx.array) -> Host:
    """An evaluated array's values, 16-bit floats as their bits; without a copy where the device allows it (`is_shared`)."""
    return np.asarray(array if array.dtype == mx.float32 else array.view(mx.uint16))


@cache
def is_shared() -> bool:
    """Whether writing to `host(array)` writes to the array."""
    array = mx.zeros((4,))
    mx.eval(array)
    view = host(array)
    if view.flags.writeable:
        view[0] = 1.0
    return bool(array[0].item() == 1.0)
