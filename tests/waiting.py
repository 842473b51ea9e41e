"""Waiting for what must happen: as long as it takes, however busy the machine is. The limit only ends a test that hangs."""

from __future__ import annotations

import asyncio
import threading
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


def longest_stop_s(work: Callable[[], object]) -> float:
    """For how long another thread of this process stood still during the work, at most."""
    is_done, longest_s = threading.Event(), [0.0]

    def beat() -> None:
        last_s = time.monotonic()
        while not is_done.wait(0.002):
            longest_s[0] = max(longest_s[0], time.monotonic() - last_s)
            last_s = time.monotonic()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        work()
    finally:
        is_done.set()
        thread.join()
    return longest_s[0]
