"""The next request to run, and admission to the queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forerun.engine.scheduler import MAX_WAITING, may_wait, next_request, retry_after_s


def waiting(*cancelled: bool) -> list[Any]:
    return [of("", is_cancelled=each) for each in cancelled]


def of(tenant: str, *, is_cancelled: bool = False) -> Any:
    return SimpleNamespace(is_cancelled=is_cancelled, job=SimpleNamespace(tenant=tenant))


def test_the_longest_waiting_request_runs_next() -> None:
    requests = waiting(True, False, False)
    assert next_request(requests, {"": 7.0}) is requests[1]


def test_none_runs_if_all_are_cancelled() -> None:
    assert next_request([], {}) is None
    assert next_request(waiting(True, True), {}) is None


def test_tenants_share_fairly() -> None:
    requests, served, order = [of("many"), of("many"), of("many"), of("few"), of("one"), of("few")], {"many": 1.0}, list[str]()
    while (request := next_request(requests, served)) is not None:
        requests.remove(request)
        served[request.job.tenant] = 2.0 + len(order)
        order.append(request.job.tenant)
    assert order == ["few", "one", "many", "few", "many", "many"]


def test_the_queue_has_a_limit() -> None:
    assert MAX_WAITING == 16
    assert [may_wait(waiting(*[False] * num), "") for num in (0, 15, 16, 17)] == [True, True, False, False]
    assert may_wait(waiting(*[False] * 16), "another tenant")


@pytest.mark.parametrize(("mean_s", "expected"), [(0.0, 1), (0.01, 1), (1.0, 8), (5.0, 40), (100.0, 60)])
def test_a_refused_client_retries_when_half_of_the_queue_is_done(mean_s: float, expected: int) -> None:
    assert retry_after_s(16, mean_s) == expected
