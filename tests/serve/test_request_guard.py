import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from tests.serve.asking import MESSAGES, HeldClock, ask
from tests.serve.engine_double import Engine

from forerun.serve import content_coding, openapi, request_guard
from forerun.serve.app import build

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BODY = {"messages": MESSAGES}


LOOPBACK = ["localhost", "LOCALHOST:8484", "localhost.", "Localhost.:80", "x.localhost", "127.0.0.1:1", "127.0.0.2", "127.255.255.254:1"]
CONTAINERS = ["host.docker.internal:8484", "host.containers.internal", "host.lima.internal", "host.orb.internal.", "0.0.0.0:8484", "[::]:1"]


@pytest.mark.parametrize("name", [*LOOPBACK, "[::1]:8484", "[::1]", "[0:0::1]", *CONTAINERS])
def test_loopback_names_are_accepted(name: str) -> None:
    assert ask(Engine(), "GET", "/health", headers={"host": name}).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.168.1.5",
        "",
        "1.2.3.4",
        "[fe80::1]",
        "llm.home.lan",
        "internal",
        "docker.internal",
        "xlocalhost",
        "*",
    ],
)
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


NAMES = ("llm.home.lan", "*.ts.net", "192.168.1.5", "fe80::1")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("LLM.home.lan.:8484", 200),
        ("box.tailnet.ts.net", 200),
        ("192.168.1.5:80", 200),
        ("[fe80::1]:80", 200),
        ("localhost", 200),
        ("ts.net", 403),
        ("evilts.net", 403),
        ("x.llm.home.lan", 403),
        ("llm.home.lan.evil.example", 403),
        ("192.168.1.6", 403),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_names_that_are_allowed(name: str, status: int, host: str) -> None:
    assert ask(Engine(), "GET", "/health", host=host, allowed_hosts=NAMES, headers={"host": name}).status_code == status


@pytest.mark.parametrize("name", ["llm.home.lan", "box.tailnet.ts.net:443", "1.2.3.4", "", "evil.example"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "192.0.2.1"])
def test_with_keys_any_name_will_do_but_no_request_without_a_key(name: str, host: str) -> None:
    keyless, keyed = (ask(Engine(), "GET", "/health", keys={"a": "k"}, host=host, headers={"host": name} | key) for key in ({}, KEY))
    assert (keyless.status_code, keyed.status_code) == (401, 200)


KEY = {"x-api-key": "k"}


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


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}
BODIES = {
    "/v1/chat/completions": BODY,
    "/v1/completions": {"prompt": "x"},
    "/v1/messages": BODY | {"max_tokens": 9},
    "/v1/messages/count_tokens": BODY,
    "/v1/responses": {"input": "hi", "max_output_tokens": 4},
}
JSON = {"content-type": "application/json"}


def send(path: str, content: bytes, coding: str, **options: Any) -> httpx.Response:
    headers = JSON | {"content-encoding": coding} | options.pop("headers", {})
    return ask(Engine(), "POST", path, content=content, headers=headers, **options)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("coding", COMPRESS)
def test_a_compressed_body_is_as_good_as_a_plain_one(path: str, coding: str) -> None:
    plain = json.dumps(BODIES[path]).encode()
    for name in (coding, coding.upper(), f"identity, {coding}"):
        assert send(path, COMPRESS[coding](plain), name).status_code == 200
    assert send(path, plain, "identity").status_code == 200
    refusal = send(path, COMPRESS[coding](b"[]"), coding)
    assert (refusal.status_code, "JSON object" in refusal.text) == (400, True)


@pytest.mark.parametrize("coding", COMPRESS)
def test_a_compressed_body_on_the_routes_of_stored_conversations(coding: str) -> None:
    engine, headers = Engine(), {"content-encoding": coding}
    change = ask(engine, "PATCH", "/v1/forerun/sessions/x", content=COMPRESS[coding](b'{"name": "y"}'), headers=headers)
    wrong = ask(engine, "PATCH", "/v1/forerun/sessions/x", content=COMPRESS[coding](b'{"name": 5}'), headers=headers)
    archive = headers | {"content-type": request_guard.ARCHIVE}
    for path in ("/v1/forerun/sessions/import", "/v1/forerun/sessions/import/"):
        assert "no archive" in ask(engine, "POST", path, content=COMPRESS[coding](b"x"), headers=archive).text
    assert (change.status_code, wrong.status_code) == (404, 400)


@pytest.mark.parametrize("coding", ["br", "compress", "gzip, gzip", "zstd, gzip", "deflate,br", "aes128gcm", "utf-8"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_another_coding_or_several_are_refused_by_name(coding: str, path: str) -> None:
    response = send(path, gzip.compress(b"{}"), coding)
    assert (response.status_code, response.headers["accept-encoding"]) == (415, "gzip, deflate, zstd")
    assert coding in response.text
    assert "gzip, deflate, zstd" in response.json()["error"]["message" if "messages" in path else "hint"]


def test_a_header_that_is_sent_twice_counts_as_two_codings() -> None:
    headers = [("content-type", "application/json"), ("content-encoding", "gzip"), ("content-encoding", "gzip")]
    assert ask(Engine(), "POST", "/v1/responses", content=gzip.compress(gzip.compress(b"{}")), headers=headers).status_code == 415


@pytest.mark.parametrize("coding", COMPRESS)
def test_a_body_that_is_not_what_its_coding_says(coding: str) -> None:
    whole = COMPRESS[coding](json.dumps(BODY).encode())
    for content in (whole[:-1], whole + b"x", json.dumps(BODY).encode(), b"\x1f"):
        error = send("/v1/chat/completions", content, coding)
        assert (error.status_code, error.json()["error"]["code"]) == (400, "bad_encoding")
        assert coding in error.json()["error"]["message"]


@pytest.mark.parametrize("coding", COMPRESS)
def test_a_body_is_counted_as_sent_and_decoded(monkeypatch: pytest.MonkeyPatch, coding: str) -> None:
    monkeypatch.setattr(request_guard, "BODY_LIMIT_BYTES", 100_000)
    monkeypatch.setattr(content_coding, "PIECE_BYTES", 1000)
    fits, exceeds = (COMPRESS[coding](b" " * num) for num in (100_000, 100_001))
    assert [send("/v1/responses", content, coding).status_code for content in (fits, exceeds)] == [400, 413]
    empty = COMPRESS[coding](b"")
    if coding != "deflate":
        assert send("/v1/responses", empty * (100_000 // len(empty) + 1), coding).status_code == 413


@pytest.mark.parametrize("coding", COMPRESS)
def test_a_bomb_is_decoded_no_further_than_the_limit(monkeypatch: pytest.MonkeyPatch, coding: str) -> None:
    decoded = []
    pieces = content_coding.Decoder.pieces

    def counted(decoder: content_coding.Decoder, data: bytes) -> Any:
        for piece in pieces(decoder, data):
            decoded.append(len(piece))
            yield piece

    monkeypatch.setattr(content_coding.Decoder, "pieces", counted)
    assert send("/v1/responses", COMPRESS[coding](bytes(64 << 20)), coding).status_code == 413
    assert sum(decoded) <= request_guard.BODY_LIMIT_BYTES + content_coding.PIECE_BYTES


def test_nothing_is_decoded_without_a_valid_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_coding.Decoder, "pieces", None)
    for coding in ("gzip", "br", "gzip, gzip"):
        for key in ({}, {"x-api-key": "wrong"}):
            assert send("/v1/responses", gzip.compress(b"{}"), coding, keys={"a": "k"}, headers=key).status_code == 401


@pytest.mark.parametrize(("num", "status"), [(3, 400), (4, 408)])
def test_a_slow_compressed_body_has_the_time_of_the_bytes_that_are_sent(num: int, status: int) -> None:
    async def content() -> AsyncIterator[bytes]:
        compressor = zlib.compressobj()
        for _ in range(num):
            await asyncio.sleep(9.9)
            yield compressor.compress(bytes(4 << 20)) + compressor.flush(zlib.Z_SYNC_FLUSH)
        yield compressor.flush()

    headers = JSON | {"content-encoding": "deflate"}
    assert ask(Engine(), "POST", "/v1/responses", content=content(), headers=headers, loop=HeldClock).status_code == status


def test_a_request_without_a_body_may_name_a_coding() -> None:
    assert ask(Engine(), "GET", "/v1/models", headers={"content-encoding": "gzip"}).status_code == 200
