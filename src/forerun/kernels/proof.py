"""A check that the fast kernels compute on this device what their references do. Knows kernels; no model and no request.

A kernel that is wrong for some shapes only, such as attention beyond some length, raises no error: only the answers get worse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from forerun import small_files
from forerun.config import cache_home
from forerun.errors import UnsupportedError
from forerun.kernels import (
    attention,
    attention_inputs,
    blocks,
    cached_attention,
    cpu,
    delta_inputs,
    delta_net,
    delta_rule,
    largest,
    linear,
    log_softmax,
    paged_attention,
    quantised,
)

MAX_RESULTS = 1 << 26
HINT = "try another version of MLX or of the driver; do not trust answers computed on this device"


class Kernel(NamedTuple):
    """errors: the relative error for each shape, empty where the kernel does not run. `limit` allows for the rounding of bfloat16."""

    name: str
    errors: Callable[[mx.Device], list[float]]
    limit: float


KERNELS = (
    Kernel("attention", attention.errors, 0.05),
    Kernel("paged attention", paged_attention.errors, 0.02),
    Kernel("delta rule", delta_rule.errors, 0.01),
    Kernel("inputs of the delta rule", delta_inputs.errors, 0.01),
    Kernel("quantised products", quantised.errors, 0.01),
    Kernel("DeltaNet layer", delta_net.errors, 1e-4),
    Kernel("inputs of attention", attention_inputs.errors, 1e-3),
    Kernel("attention over stored rows", cached_attention.errors, 1e-4),
    Kernel("products", linear.errors, 1e-4),
    Kernel("products with GGUF blocks", blocks.errors, 1e-4),
    Kernel("log-softmax", log_softmax.errors, 1e-5),
    Kernel("the largest values", largest.errors, 0.0),
)


def prove_once() -> None:
    """`prove`, unless it succeeded before with the same kernels, MLX and device: compiling each shape on a GPU takes most of a minute.
    `forerun doctor` always runs `prove`. Raises UnsupportedError.
    """
    file = cache_home() / "proofs" / _subject()
    if not file.is_file():
        small_files.keep(file, json.dumps(prove()))


def _subject() -> str:
    info, here = mx.device_info(mx.default_device()), Path(__file__).parent
    sources = [file.read_bytes() for file in sorted(here.iterdir()) if file.is_file()]
    named = [cpu.build(), version("mlx"), *(str(info.get(name)) for name in ("device_name", "architecture"))]
    return blake2b(b"\0".join([*sources, *(each.encode() for each in named)]), digest_size=16).hexdigest()


def prove() -> dict[str, float]:
    """The largest error of each kernel that runs on the default device. Raises UnsupportedError if one is wrong."""
    measured = {kernel: kernel.errors(mx.default_device()) for kernel in KERNELS}
    for kernel, errors in measured.items():
        if wrong := [error for error in errors if not error <= kernel.limit]:  # NaN is wrong, too
            raise UnsupportedError(f"the fast kernel of {kernel.name} is wrong on this device (error {wrong[0]:.1e})", hint=HINT)
    return {kernel.name: max(errors) for kernel, errors in measured.items() if errors}


def prove_row_invariant(shapes: Collection[tuple[int, int]]) -> None:
    """Check MLX's own x @ W.T for every weight shape [out, in]: a row has the same bits with 1 to 1,024 rows. Else UnsupportedError.

    Fewer rows for an output head: it never sees a whole prompt, and the check would take minutes and gigabytes.
    """
    for out, inner in sorted(shapes):
        max_rows = 1024 if out * 1024 <= MAX_RESULTS else max(64, MAX_RESULTS // out)
        x, w = mx.random.normal((max_rows, inner), key=mx.random.key(2)), mx.random.normal((out, inner), key=mx.random.key(3))
        whole = x @ w.T
        for rows in (n for n in (1, 2, 3, 4, 5, 6, 7, 8, 13, 64, 300, 512) if n < max_rows):
            if not mx.array_equal(whole[:rows], x[:rows] @ w.T) or not mx.array_equal(whole[max_rows - rows :], x[max_rows - rows :] @ w.T):
                message = f"MLX changes the bits of a row with the number of rows ({rows} against {max_rows}, weight {out} x {inner})"
                raise UnsupportedError(message, hint="install a C++ compiler and forerun again: its own kernels do not")
