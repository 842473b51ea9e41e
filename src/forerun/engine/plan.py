"""Who runs next, and who may wait. Pure policy: no threads, no clock, no MLX."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.engine.request import Request

MAX_WAITING = 16


def plan(waiting: Sequence[Request]) -> Request | None:
    """The request to run next: the one that waits longest of those that somebody still wants."""
    return next((request for request in waiting if not request.is_cancelled), None)


def may_wait(num_waiting: int) -> bool:
    """Whether one more request may join the queue."""
    return num_waiting < MAX_WAITING


def retry_after_s(num_waiting: int, mean_request_s: float) -> int:
    """When a refused client should ask again: when half of the queue should be done; between 1 s and 60 s."""
    return max(1, min(60, round(num_waiting * mean_request_s / 2)))
