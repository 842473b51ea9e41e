"""How a process computes: numerics, dtype and kernels, which follow from its device. Imports MLX; knows no model."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from forerun.kernels import cpu
from forerun.kernels.numerics import ARRAYS, EXACT, FAST, Numerics


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """dtype: of activations, keys and values. kernels: who computes, for people: no part of an identity."""

    numerics: Numerics
    dtype: str
    kernels: str


def here() -> Arithmetic:
    """The arithmetic of the default device: `exact` on a CPU, with kernels of our own if they are there, `fast` on a GPU."""
    if not is_cpu():
        return Arithmetic(FAST, dtype_on(is_cpu=False), str(mx.default_device()))
    kernels = cpu.extension()
    if kernels is None:
        return Arithmetic(ARRAYS, dtype_on(is_cpu=True), "MLX's array operations (slow)")
    return Arithmetic(EXACT, dtype_on(is_cpu=True), f"forerun's, {kernels.instruction_set()}, {kernels.num_threads()} threads")


def dtype_on(*, is_cpu: bool) -> str:
    """The dtype of activations, keys and values on a device: a CPU has no fast 16-bit products."""
    return "float32" if is_cpu else "bfloat16"


def is_cpu() -> bool:
    """Whether MLX runs on the CPU."""
    return bool(mx.default_device() == mx.cpu)
