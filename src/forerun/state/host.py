"""MLX arrays as NumPy arrays on the host: views where host and device share memory, otherwise copies in one transfer."""

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

    If the device uses the array again, only where `is_shared`; otherwise use `copy_to_host`.
    """
    return np.asarray(array if array.dtype == mx.float32 else array.view(mx.uint16))


@cache
def is_shared() -> bool:
    """Whether writing to `host(array)` writes to the array, without slowing the device.

    Tested, not assumed. On CUDA an array that the host reads migrates as a whole, and migrates back in the next steps.
    """
    array = mx.zeros((4,))
    mx.eval(array)
    view = host(array)
    if view.flags.writeable and not is_cuda():
        view[0] = 1.0
    return bool(array[0].item() == 1.0)


def copy_to_host(arrays: Sequence[mx.array]) -> list[Host]:
    """The values of `arrays` in the form of `host`, joined on the device and copied in one transfer; the arrays do not migrate."""
    whole = mx.concatenate([a.reshape(-1).view(mx.uint8) for a in arrays])
    mx.eval(whole)
    data, parts, start = np.asarray(whole), list[Host](), 0
    for array in arrays:
        stop = start + array.nbytes
        parts.append(data[start:stop].view(NUMPY[str(array.dtype).split(".")[-1]]).reshape(array.shape))
        start = stop
    return parts


def to_device(part: Host, dtype: mx.Dtype) -> mx.array:
    """A new array of values in the form of `host`."""
    array = mx.array(part)
    return array if dtype == mx.float32 else array.view(dtype)
