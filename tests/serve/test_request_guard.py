import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.serve.asking import MESSAGES, HeldClock, ask
from tests.serve.engine_double import Engine

from forerun.serve import openapi, request_guard
from forerun.serve.app import build

BODY = {"messages": MESSAGES}


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:8484", "127.0.0.1:1", "[::1]:8484", "[::1]"])
def test_loopback_names_are_accepted(name: str) -> None:
    assert ask(Engine(), "GET", "/health", headers={"host": name}).status_code == 200


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.5", ""])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_names_are_refused(name: str, method: str) -> None:
    response = ask(Engine(), method, "/health", headers={"host": name})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"


def test_the_bound_name_is_accepted() -> None:
    assert ask(Engine(), "GET", "/health", host="box.example", headers={"host": "Box.example:80"}).status_code == 200


@pytest.mark.parametrize(
    ("name", "status"), [("192.168.1.5:8484", 200), ("[fe80::1]:80", 200), ("here", 200), ("here.local", 200), ("evil.example", 403)]
)
def test_a_server_on_any_address_answers_to_addresses_and_its_own_name(monkeypatch: pytest.MonkeyPatch, name: str, status: int) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Here")
    assert ask(Engine(), "GET", "/health", host="0.0.0.0", headers={"host": name}).status_code == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/json-patch+json", None])
def test_other_content_types_are_refused(kind: str | None) -> None:
    engine = Engine()
    response = ask(engine, "POST", "/v1/chat/completions", content=b'{"messages": []}', headers={"content-type": kind} if kind else {})
    assert response.status_code == 415
    assert engine.jobs == []


def test_json_may_name_its_charset() -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert ask(Engine(), "POST", "/v1/chat/completions", content=b"{}", headers=headers).status_code == 400


def test_no_web_page_is_allowed_by_default() -> None:
    preflight = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    for response in (
        ask(Engine(), "OPTIONS", "/v1/chat/completions", headers=preflight),
        ask(Engine(), "POST", "/v1/chat/completions", json=BODY, headers={"origin": "http://evil.example"}),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]
    assert ask(Engine(), "OPTIONS", "/v1/chat/completions", headers=preflight).status_code == 405


def test_the_limit_is_32_mib() -> None:
    assert request_guard.BODY_LIMIT_BYTES == 32 * 1024 * 1024


@pytest.mark.parametrize(("size", "status"), [(1000, 400), (1001, 413)])
def test_a_body_is_counted_whatever_was_announced(monkeypatch: pytest.MonkeyPatch, size: int, status: int) -> None:
    monkeypatch.setattr(request_guard, "BODY_LIMIT_BYTES", 1000)

    async def chunked() -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b" "

    headers = {"content-type": "application/json"}
    assert ask(Engine(), "POST", "/v1/chat/completions", content=chunked(), headers=headers).status_code == status
    assert ask(Engine(), "POST", "/v1/chat/completions", content=b" " * size, headers=headers).status_code == status


def test_a_truncated_body_is_not_served() -> None:
    engine = Engine()
    sent: list[object] = []
    messages = iter([{"type": "http.request", "body": b'{"messages": [{"role": "user", "content": "x"}]}', "more_body": True}])

    async def receive() -> dict[str, object]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: object) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "root_path": ""}
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    asyncio.run(build(engine, keys={}, host="127.0.0.1")({**scope, "headers": headers}, receive, send))
    assert (engine.jobs, sent) == ([], [])


async def pieces(num: int, size: int, pause_s: float) -> AsyncIterator[bytes]:
    for _ in range(num):
        await asyncio.sleep(pause_s)
        yield b" " * size


@pytest.mark.parametrize(
    ("num", "size", "pause_s", "status"),
    [
        (32, 1 << 20, 9.9, 413),
        (31, 1 << 20, 9.9, 400),
        (3, 1, 9.9, 400),
        (4, 1, 9.9, 408),
        (2, 1 << 20, 10.1, 408),
        (100, 8 << 10, 1.0, 408),
    ],
    ids=["large", "slow", "small", "slower than a body may be", "silent", "below the rate"],
)
def test_a_body_may_be_slow_but_must_move(num: int, size: int, pause_s: float, status: int) -> None:
    content, headers = pieces(num, size + (num == 32), pause_s), {"content-type": "application/json"}
    assert ask(Engine(), "POST", "/v1/chat/completions", content=content, headers=headers, loop=HeldClock).status_code == status


def test_a_key_is_checked_before_anything_else_about_a_body() -> None:
    for headers in ({"content-type": "text/plain"}, {"content-type": "application/json"}):
        assert ask(Engine(), "POST", "/nothing", keys={"ann": "a"}, content=b"{}", headers=headers).status_code == 401


def test_every_body_arrives_whole() -> None:
    engine = Engine()
    text = "é" * 100_000
    response: httpx.Response = ask(engine, "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]})
    assert response.status_code == 200
    assert engine.jobs[0].prompt.messages[0]["content"] == text


PAGE = {"origin": "https://page.example"}
PREFLIGHT = PAGE | {"access-control-request-method": "POST", "access-control-request-headers": "content-type, authorization"}


def visit(method: str, path: str, headers: dict[str, str], **request: Any) -> httpx.Response:
    """The response to a web page on another origin, where https://page.example is on the list."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(build(Engine(), keys={}, host="127.0.0.1", origins=("https://page.example",)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, headers=headers, **request)

    return asyncio.run(send())


def test_a_page_on_the_list_may_use_the_api() -> None:
    allowed = visit("OPTIONS", "/v1/chat/completions", PREFLIGHT)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE["origin"]
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert visit("POST", "/v1/chat/completions", PAGE, json=BODY).headers["access-control-allow-origin"] == PAGE["origin"]


def test_a_page_on_the_list_can_read_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "BODY_LIMIT_BYTES", 1000)
    monkeypatch.setattr(request_guard, "BODY_SILENCE_S", 0.01)
    refusals = (
        visit("POST", "/v1/chat/completions", PAGE | {"host": "evil.example"}, json=BODY),
        visit("POST", "/v1/chat/completions", PAGE | {"content-type": "application/json"}, content=never()),
        visit("POST", "/v1/chat/completions", PAGE, json=BODY | {"user": "x" * 1000}),
        visit("POST", "/v1/chat/completions", PAGE, content=b"{}"),
    )
    assert [response.status_code for response in refusals] == [403, 408, 413, 415]
    assert {response.headers.get("access-control-allow-origin") for response in refusals} == {PAGE["origin"]}


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def shares(response: httpx.Response) -> bool:
    return any(name.startswith("access-control") for name in response.headers)


def test_other_pages_are_refused() -> None:
    other = {"origin": "https://other.example"}
    assert "access-control-allow-origin" not in visit("OPTIONS", "/v1/chat/completions", PREFLIGHT | other).headers
    assert "access-control-allow-origin" not in visit("POST", "/v1/chat/completions", other, json=BODY).headers


@pytest.mark.parametrize("path", openapi.document()["paths"])
def test_routes_that_report_on_the_server_or_on_stored_conversations_are_shared_with_no_page(path: str) -> None:
    is_shared = path.startswith(("/v1/chat/", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/models"))
    for method in ("GET", "POST", "PATCH", "DELETE"):
        assert shares(visit("OPTIONS", path, PREFLIGHT | {"access-control-request-method": method})) == is_shared
        assert shares(visit(method, path, PAGE, json={})) == is_shared
