"""The next request to run, admission to the queue, and how prefill and decoding share time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forerun.engine.scheduler import MAX_WAITING, PREFILL_FRAC, TimeShare, may_wait, next_request, retry_after_s


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


def shares(piece_s: float, round_s: float, num: int = 1000) -> tuple[float, int]:
    """The part of the time that prefill gets, and the most pieces without a round between them."""
    share, prefill_s, decode_s, in_row, most = TimeShare(), 0.0, 0.0, 0, 0
    for _ in range(num):
        if share.is_prefill_due(can_decode=True):
            share.note_prefill(piece_s, can_decode=True)
            prefill_s, in_row = prefill_s + piece_s, in_row + 1
            most = max(most, in_row)
        else:
            share.note_round(round_s)
            decode_s, in_row = decode_s + round_s, 0
    return prefill_s / (prefill_s + decode_s), most


@pytest.mark.parametrize(("piece_s", "round_s"), [(0.038, 0.0088), (0.04, 0.003), (0.04, 0.01), (0.04, 0.0001)])
def test_prefill_gets_its_part_of_the_time_beside_streams(piece_s: float, round_s: float) -> None:
    part, most = shares(piece_s, round_s)
    assert part == pytest.approx(PREFILL_FRAC, abs=0.02)
    assert most == 1


def test_a_round_follows_each_piece_however_long_it_takes() -> None:
    """Then prefill gets less than its part: no gap of a stream holds two pieces."""
    assert shares(0.01, 0.03) == (pytest.approx(0.25), 1)


def test_nothing_is_owed_for_prefill_while_none_could_decode() -> None:
    share = TimeShare()
    share.note_prefill(10.0, can_decode=False)
    assert share.is_prefill_due(can_decode=True)
