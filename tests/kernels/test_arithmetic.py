"""The arithmetic of a process, from its device and from the CPU kernels."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from forerun.kernels import arithmetic
from forerun.kernels.arithmetic import Arithmetic
from forerun.kernels.numerics import ARRAYS, EXACT, FAST

_cpu: Any = pytest.importorskip("forerun._cpu")


def test_a_cpu_is_exact_by_kernels_of_our_own() -> None:
    assert arithmetic.here() == Arithmetic(EXACT, "float32", f"forerun's, {_cpu.instruction_set()}, {_cpu.num_threads()} threads")


@pytest.mark.usefixtures("without_cpu_kernels")
def test_without_them_it_has_a_numerics_of_its_own() -> None:
    """Its bits are those of the installed MLX, so that no other machine may restore what it stored as `exact`."""
    assert arithmetic.here() == Arithmetic(ARRAYS, "float32", "MLX's array operations (slow)")
    assert len({EXACT.name, ARRAYS.name, FAST.name}) == 3


def test_a_gpu_is_fast_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever CPU kernels are installed: they are no part of what it computes."""
    monkeypatch.setattr(arithmetic, "is_cpu", lambda: False)
    assert arithmetic.here() == Arithmetic(FAST, "bfloat16", str(mx.default_device()))
