"""Every test leaves the extension's instruction set and number of threads as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx  # before the extension, which needs its types
import pytest

_cpu: Any = pytest.importorskip("forerun._cpu")


assert mx


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    name, threads = _cpu.instruction_set(), _cpu.num_threads()
    yield
    _cpu.use(name)
    _cpu.set_num_threads(threads)
