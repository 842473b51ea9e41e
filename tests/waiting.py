"""Waiting for what must happen: as long as it takes, however busy the machine is. The limit only ends a test that hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 120.0


def wait_for(is_so: Callable[[], object]) -> None:
    """Wait until it is so."""
    end_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)


async def until(is_so: Callable[[], object]) -> None:
    """Wait until it is so, and let other tasks go on meanwhile."""
    end_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end_s, "waited in vain"
        await asyncio.sleep(0.005)
