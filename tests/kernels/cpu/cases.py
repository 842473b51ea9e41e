"""Inputs of the tests of the CPU extension, and its results on every instruction set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

_cpu: Any = pytest.importorskip("forerun._cpu")

DTYPES = (mx.float32, mx.bfloat16, mx.float16)


def matrix(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape, np.float32))


def on_every_set(compute: Callable[[], mx.array]) -> list[np.ndarray]:
    results = []
    for name in _cpu.instruction_sets():
        _cpu.use(name)
        results.append(np.array(compute()))
    return results
