"""Who runs next, and who may wait. Pure policy: no threads, no clock, no MLX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forerun.engine.request import Request

MAX_WAITING = 16


def plan(waiting: Sequence[Request], served_s: Mapping[str, float]) -> Request | None:
    """The request to run next, of those that somebody still wants: the one that waits longest of the tenant that was served longest ago, so
    that nobody's many requests keep others waiting. served_s: when a request of each tenant was last begun, by time.monotonic().
    """
    wanted = [request for request in waiting if not request.is_cancelled]
    return min(wanted, key=lambda request: served_s.get(request.job.tenant, 0.0), default=None)


def may_wait(waiting: Sequence[Request], tenant: str) -> bool:
    """Whether one more request of the tenant may join the queue: if it is full, of a tenant of whom none waits."""
    return len(waiting) < MAX_WAITING or all(request.job.tenant != tenant for request in waiting)


def retry_after_s(num_waiting: int, mean_request_s: float) -> int:
    """When a refused client should ask again: when half of the queue should be done; between 1 s and 60 s."""
    return max(1, min(60, round(num_waiting * mean_request_s / 2)))
