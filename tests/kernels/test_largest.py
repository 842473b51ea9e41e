"""The largest values of a row by kernel and by array operations: of equals the lower index first."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from forerun.kernels import cpu
from forerun.kernels.largest import largest_ids

SIZES = [(5, 1), (40, 3), (50, 50), (64, 1), (1000, 4), (20_001, 1), (20_001, 20), (20_001, 312), (20_001, 5000)]


def check(size: int, num: int) -> None:
    values = np.round(np.array(mx.random.normal((3, size), key=mx.random.key(size))), 1)  # many ties, and minus zero
    values[0] = np.sort(values[0])
    expected = np.argsort(-values, axis=1, kind="stable")[:, :num]
    assert np.array_equal(largest_ids(mx.array(values), num), expected)


@pytest.mark.parametrize(("size", "num"), SIZES)
def test_on_this_device(size: int, num: int) -> None:
    check(size, num)


@pytest.mark.usefixtures("without_cpu_kernels")
@pytest.mark.parametrize(("size", "num"), SIZES)
def test_by_array_operations(size: int, num: int) -> None:
    check(size, num)


@pytest.mark.skipif(cpu.extension() is None, reason="the CPU kernels are not built")
def test_the_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only some of a long row are wanted, as for top_k of a vocabulary."""
    called = []
    real = cpu.extension()

    class Spy:
        def top_k(self, values: mx.array, num: int) -> tuple[mx.array, mx.array]:
            called.append(num)
            return real.top_k(values, num)

    monkeypatch.setattr(cpu, "extension", Spy)
    check(20_001, 20)
    assert called == [20]
