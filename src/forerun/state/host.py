"""Arrays as the host sees them: in place where host and device share memory, otherwise brought over and sent back in whole pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from forerun.kernels.cuda_source import is_cuda

Host = np.ndarray[tuple[int, ...], np.dtype[Any]]
NUMPY: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype("<u2"), "float16": np.dtype("<u2")}


def host(array: mx.array) -> Host:
    """An evaluated array's values, 16-bit floats as their bits; without a copy where the device allows it.

    For arrays that the device goes on with only if `is_shared`, else see `fetched`.
    """
    return np.asarray(array if array.dtype == mx.float32 else array.view(mx.uint16))


@cache
def is_shared() -> bool:
    """Whether writing to `host(array)` writes to the array, and the device is none the slower for it.

    It is tried, not assumed. On CUDA an array that the host has looked at moves as a whole, and moves back in the next steps.
    """
    array = mx.zeros((4,))
    mx.eval(array)
    view = host(array)
    if view.flags.writeable and not is_cuda():
        view[0] = 1.0
    return bool(array[0].item() == 1.0)


def fetched(arrays: Sequence[mx.array]) -> list[Host]:
    """The values of `arrays` as `host` has them, copied on the device and brought over in one piece; the arrays stay where they are."""
    whole = mx.concatenate([a.reshape(-1).view(mx.uint8) for a in arrays])
    mx.eval(whole)
    data, parts, start = np.asarray(whole), list[Host](), 0
    for array in arrays:
        stop = start + array.nbytes
        parts.append(data[start:stop].view(NUMPY[str(array.dtype).split(".")[-1]]).reshape(array.shape))
        start = stop
    return parts


def sent(part: Host, dtype: mx.Dtype) -> mx.array:
    """An array of its own of values as `host` has them."""
    array = mx.array(part)
    return array if dtype == mx.float32 else array.view(dtype)
