"""The CPU kernels: the extension `forerun._cpu`, or why this process has none (docs/cpu.md). Tries one operation; knows no other."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, cast

import mlx.core as mx

from forerun.kernels.cpu.operations import Operations

NOT_BUILT = Path(__file__).with_name("not_built.txt")  # written by tools/build_extension.py
REMEDY = "install a C++20 compiler and Python's headers (Debian, Ubuntu: `apt-get install g++ python3-dev`), then install forerun again"


class Unusable(NamedTuple):
    """Why there is no extension, and what the user can do."""

    reason: str
    remedy: str


def extension() -> Operations | None:
    """The module `forerun._cpu` if it serves the default device, else None: operations then use arrays. `unusable` returns why."""
    return _module() if mx.default_device() == mx.cpu and unusable() is None else None


@cache
def _module() -> Operations:
    return cast("Operations", import_module("forerun._cpu"))


@cache
def build() -> str:
    """Identifies the extension's machine code, "" without one."""
    module = import_module("forerun._cpu") if unusable() is None else None
    return blake2b(Path(str(module.__file__)).read_bytes(), digest_size=16).hexdigest() if module else ""


@cache
def unusable() -> Unusable | None:
    """Why the extension cannot be used, None if it can. Computed once a process."""
    try:
        module = import_module("forerun._cpu")
    except ModuleNotFoundError:
        return Unusable(NOT_BUILT.read_text().strip() if NOT_BUILT.is_file() else "they were not built", REMEDY)
    except ImportError as error:
        return Unusable(f"they cannot be loaded: {error}", "install forerun again")
    return _other_mlx(module.MLX_VERSION, version("mlx")) or _wrong(module)


def _other_mlx(built: str, installed: str) -> Unusable | None:
    """Nothing of the extension may be called under another MLX than its own: the C++ interface changes between releases."""
    if built == installed:
        return None
    return Unusable(
        f"they were built for MLX {built}, and {installed} is installed", f"`pip install mlx=={built}`, or install forerun again"
    )


def _wrong(module: ModuleType) -> Unusable | None:
    """One small result against MLX's. An extension of another nanobind loads, but knows no arrays."""
    with mx.stream(mx.cpu):
        x = mx.arange(64, dtype=mx.float32).reshape(2, 32) / 16 - 2
        gate, up = x[:, :16], x[:, 16:]
        try:
            error = float(mx.abs(module.swiglu(x) - gate * mx.sigmoid(gate) * up).max())
        except TypeError as refused:
            return Unusable(f"they do not know MLX's arrays: {str(refused).splitlines()[0]}", "install forerun again")
    if not error < 1e-5:  # NaN is wrong, too
        return Unusable(
            f"they compute wrong results on this processor (error {error:.1e})", "please report it, with the output of forerun doctor"
        )
    return None
