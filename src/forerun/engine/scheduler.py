"""Fair-share scheduling between tenants, and admission to the queue. Pure: no threads, no clock, no MLX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forerun.engine.request import Request

MAX_WAITING = 16


def next_request(waiting: Sequence[Request], served_s: Mapping[str, float]) -> Request | None:
    """The request to run next: the oldest of the least recently served tenant, so that one tenant's many requests do not delay another's.
    Cancelled ones are skipped. served_s: when each tenant's last request started, of time.monotonic().
    """
    live = [request for request in waiting if not request.is_cancelled]
    return min(live, key=lambda request: served_s.get(request.job.tenant, 0.0), default=None)


def may_wait(waiting: Sequence[Request], tenant: str) -> bool:
    """Whether the tenant may queue one more request. A full queue still takes one from a tenant with none waiting."""
    return len(waiting) < MAX_WAITING or all(request.job.tenant != tenant for request in waiting)


def retry_after_s(num_waiting: int, mean_request_s: float) -> int:
    """Seconds after which a refused client should retry: the time for half of the queue, between 1 and 60."""
    return max(1, min(60, round(num_waiting * mean_request_s / 2)))
