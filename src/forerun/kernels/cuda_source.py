"""The CUDA sources in this folder, which MLX compiles at run time. Knows files and names, nothing of what a kernel computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import cast

import mlx.core as mx

Kernel = Callable[..., list[mx.array]]


def is_cuda() -> bool:
    """Whether the default device runs CUDA kernels."""
    return mx.cuda.is_available() and mx.default_device() == mx.gpu


@cache
def kernel(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Kernel:
    """The body `name`.cu, with device.cuh as header, as a kernel of these arrays. MLX makes arrays contiguous before a call.

    MLX caches compiled kernels by name alone (0.32.4 in the process, other versions on disk too), so the name has a hash of the source.
    """
    header, body = ((Path(__file__).parent / file).read_text() for file in ("device.cuh", f"{name}.cu"))
    unique = f"{name}_{blake2b((header + body).encode(), digest_size=6).hexdigest()}"
    return cast("Kernel", mx.fast.cuda_kernel(name=unique, input_names=inputs, output_names=outputs, source=body, header=header))
