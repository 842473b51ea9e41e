import asyncio

import httpx
import pytest
from tests.serve.asking import MESSAGES
from tests.serve.engine_double import Engine
from tests.serve.test_app import POSTS

from forerun.errors import RateLimitError
from forerun.serve.app import build
from forerun.serve.rate import Rate


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_minutes_requests_may_come_in_a_burst() -> None:
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


def test_each_key_has_a_limit_of_its_own() -> None:
    rate = Rate(1, clock=Clock())
    rate.take("ann")
    rate.take("ben")
    for _ in range(1000):
        Rate(None).take("ann")


def responses_to(asked: list[tuple[str, str]]) -> list[httpx.Response]:
    """The responses to requests of these keys to these routes, where one a minute is allowed."""

    async def scenario() -> list[httpx.Response]:
        app = build(Engine(), keys={"ann": "a", "ben": "b"}, host="127.0.0.1", requests_per_minute=1)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            body = {"messages": MESSAGES, "input": "x", "max_tokens": 5}
            bodies = {"/v1/completions": {"prompt": "x"}}
            return [await client.post(path, headers={"x-api-key": key}, json=bodies.get(path, body)) for key, path in asked]

    return asyncio.run(scenario())


@pytest.mark.parametrize("path", POSTS)
def test_who_sends_too_much_is_told_when_to_come_back(path: str) -> None:
    first, second, other = responses_to([("a", path), ("a", path), ("b", path)])
    assert (first.status_code, second.status_code, other.status_code) == (200, 429, 200)
    assert second.headers["retry-after"] == "60"
    is_anthropic, body = path.startswith("/v1/messages"), second.json()
    assert body["error"]["type"] == "rate_limit_error"
    assert (body.get("type"), body["error"].get("code")) == (("error", None) if is_anthropic else (None, "rate_limit_exceeded"))


def test_requests_of_all_dialects_count_together() -> None:
    assert [each.status_code for each in responses_to([("a", "/v1/messages"), ("a", "/v1/responses")])] == [200, 429]
