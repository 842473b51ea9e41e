"""Tests of the CPU extension leave its instruction set and number of threads as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forerun.kernels import cpu


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    kernels = cpu.extension()
    if kernels is None:
        yield
        return
    name, threads = kernels.instruction_set(), kernels.num_threads()
    yield
    kernels.use(name)
    kernels.set_num_threads(threads)
