"""The rate limit: a token bucket for each tenant that holds a minute's requests. Knows tenants by name; knows no route and no key."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from forerun.errors import RateLimitError

MINUTE_S = 60.0


class Rate:
    """Allows each tenant `per_minute` requests a minute, in a burst too; None: no limit. clock: monotonic seconds."""

    def __init__(self, per_minute: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._spent: dict[str, tuple[float, float]] = {}  # requests not yet refilled, and as of when

    def take(self, tenant: str) -> None:
        """Count one request. Raises RateLimitError if it is one too many."""
        if self._per_minute is None:
            return
        now_s, pace = self._clock(), self._per_minute / MINUTE_S
        spent, since_s = self._spent.get(tenant, (0.0, now_s))
        spent = max(0.0, spent - (now_s - since_s) * pace)
        if spent + 1 > self._per_minute:
            wait_s = max(1, math.ceil((spent + 1 - self._per_minute) / pace))
            raise RateLimitError(f"{self._per_minute} requests a minute are allowed", retry_after_s=wait_s, hint=f"try again in {wait_s} s")
        self._spent[tenant] = spent + 1, now_s
