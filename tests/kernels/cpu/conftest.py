"""Tests of the CPU extension run where it was built. Each leaves the instruction set and the number of threads as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.kernels import cpu

collect_ignore = [file.name for file in Path(__file__).parent.glob("test_*.py") if cpu.unusable() and file.name != "test_extension.py"]


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
