import asyncio

import httpx
import pytest
from tests.serve.asking import MESSAGES
from tests.serve.engine_double import Engine

from forerun.errors import RateLimitError
from forerun.serve.app import build
from forerun.serve.rate import Rate


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_minutes_requests_may_come_at_once_and_then_one_by_one() -> None:
    clock = Clock()
    rate = Rate(6, clock=clock)
    for _ in range(6):
        rate.take("ann")
    with pytest.raises(RateLimitError) as caught:
        rate.take("ann")
    assert caught.value.retry_after_s == 10
    clock.now_s += 9.9
    with pytest.raises(RateLimitError):
        rate.take("ann")
    clock.now_s += 0.2
    rate.take("ann")
    with pytest.raises(RateLimitError):
        rate.take("ann")
    clock.now_s += 3600
    for _ in range(6):
        rate.take("ann")


def test_each_key_has_its_own_and_none_is_no_limit() -> None:
    rate = Rate(1, clock=Clock())
    rate.take("ann")
    rate.take("ben")
    for _ in range(1000):
        Rate(None).take("ann")


def test_who_sends_too_much_is_told_when_to_come_back() -> None:
    async def scenario() -> list[httpx.Response]:
        app = build(Engine(), keys={"ann": "a", "ben": "b"}, host="127.0.0.1", requests_per_minute=1)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            asked = [("a", "/v1/chat/completions"), ("a", "/v1/chat/completions"), ("a", "/v1/messages"), ("b", "/v1/chat/completions")]
            bodies = {"json": {"messages": MESSAGES, "max_tokens": 5}}
            return [await client.post(path, headers={"x-api-key": key}, **bodies) for key, path in asked]

    first, second, third, other = asyncio.run(scenario())
    assert (first.status_code, second.status_code, third.status_code, other.status_code) == (200, 429, 429, 200)
    assert second.headers["retry-after"] == "60"
    assert (second.json()["error"]["code"], third.json()["error"]["type"]) == ("rate_limit_exceeded", "rate_limit_error")
