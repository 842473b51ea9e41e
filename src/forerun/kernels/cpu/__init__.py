"""The CPU kernels: an extension of MLX in C++, built with the package where a compiler is (docs/cpu.md)."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import mlx.core as mx


def extension() -> ModuleType | None:
    """The extension if it serves the default device, else None: operations then use arrays."""
    return _module() if mx.default_device() == mx.cpu else None


@cache
def _module() -> ModuleType | None:
    try:
        from forerun import _cpu
    except ImportError:
        return None
    return _cpu
