"""Over real sockets: clients that disconnect, that stop reading, that send no valid HTTP, or no valid key."""

import json
import socket
from contextlib import closing
from http.client import HTTPConnection

import httpx
import pytest
from tests.serve.asking import MESSAGES, serving, values
from tests.serve.engine_double import DONE, Engine
from tests.waiting import LIMIT_S, wait_for
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from forerun.serve import http_protocol, openapi, request_guard
from forerun.serve.http_protocol import Protocol
from forerun.values import Content, Event, PrefillProgress, QueuePosition

READ = PrefillProgress(4, 7, 3, None)


PATHS = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/responses": {"input": "hello"},
}
CHAT = "/v1/chat/completions"


def request(path: str = CHAT, **body: object) -> bytes:
    content = json.dumps(PATHS[path] | body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", [(), (QueuePosition(1),), (READ,), (READ, Content("x"))], ids=["sent", "queued", "reading", "writing"])
def test_a_client_that_goes_frees_the_engine(path: str, stream: bool, phase: tuple[Event, ...]) -> None:
    engine = Engine(*phase, 30.0)
    with serving(engine) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request(path, stream=stream))
            wait_for(lambda: len(engine.runs) == 1)
            if stream:
                assert client.recv(100).startswith(b"HTTP/1.1 200"), "headers go out at once"
            assert not engine.runs[0].is_cancelled
        wait_for(lambda: engine.runs[0].is_cancelled)


def test_a_client_that_stops_reading_and_goes_frees_the_engine() -> None:
    engine = Engine(*[Content("x" * 100_000)] * 1000, 30.0)
    with serving(engine) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request(stream=True))
            client.recv(1000)
        wait_for(lambda: engine.runs[0].is_cancelled)


def test_a_client_that_stops_reading_and_stays_frees_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "STALL_LIMIT_S", 0.2)
    engine = Engine(*[Content("x" * 100_000)] * 1000, 30.0)
    with serving(engine) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request(stream=True))
        client.recv(1000)
        wait_for(lambda: engine.runs[0].is_cancelled)


def test_a_connection_serves_one_request_after_the_other() -> None:
    with serving(Engine()) as port, socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(3):
            client.sendall(request(stream=True))
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += client.recv(65536)
            assert received.count(b"data: [DONE]\n\n") == 1


def test_bytes_that_are_no_request_get_an_error_in_the_apis_shape() -> None:
    with serving(Engine()) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"hello?\r\n\r\n")
        head, _, body = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(request_guard, "BODY_SILENCE_S", 0.2)
    engine = Engine()
    with serving(engine) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request(path)[:-3])
        head, _, body = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert "paused" in json.loads(body)["error"]["message"]
    assert engine.jobs == []


KEYS = {"ann": "key-a"}
WITH_BODY = [
    (method.upper(), path)
    for path, methods in openapi.document()["paths"].items()
    for method in methods
    if method in ("post", "patch", "put")
]


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what the server takes from its sockets. The application must ask for nothing."""
    sizes: list[int] = []
    original = Protocol.data_received

    def counted(self: Protocol, data: bytes) -> None:
        sizes.append(len(data))
        original(self, data)

    async def never(self: object) -> None:
        pytest.fail("a body was asked for")

    monkeypatch.setattr(Protocol, "data_received", counted)
    monkeypatch.setattr(RequestResponseCycle, "receive", never)
    return sizes


@pytest.mark.parametrize("key", ["", "X-Api-Key: key-b\r\n"], ids=["none", "wrong"])
@pytest.mark.parametrize(("method", "path"), WITH_BODY)
def test_a_body_without_a_valid_key_is_never_read(num_read: list[int], method: str, path: str, key: str) -> None:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{key}Content-Type: application/json\r\nContent-Length: {32 << 20}\r\n\r\n"
    with serving(Engine(), keys=KEYS) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head.encode())
        head, _, body = b"".join(iter(lambda: client.recv(4096), b"")).decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 401 ")
    assert "connection: close" in head.lower()
    assert json.loads(body)["error"]["type"] == ("authentication_error" if path.startswith("/v1/messages") else "invalid_request_error")
    assert sum(num_read) < 1000


def test_a_client_without_a_valid_key_that_keeps_sending_gets_its_answer(num_read: list[int]) -> None:
    sent_bytes = 1 << 20
    with serving(Engine(), keys=KEYS) as port:
        url = f"http://127.0.0.1:{port}{CHAT}"
        for content in (bytes(sent_bytes), bytes(32 << 20)):
            response = httpx.post(url, content=content, headers={"content-type": "application/json"}, timeout=LIMIT_S)
            assert (response.status_code, response.headers["connection"]) == (401, "close")
            # uvicorn stops taking bytes beyond 64 KiB that nobody asks for; asyncio takes 256 KiB at a time.
            assert sum(num_read) <= (64 << 10) + (256 << 10) + 1000
            num_read.clear()


def test_a_refusal_without_a_body_keeps_the_connection() -> None:
    with serving(Engine(), keys=KEYS) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert "connection" not in client.get("/health").headers


def half_closed(port: int, sent: bytes) -> bytes:
    """All that a client gets which sends this and ends its side of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.mark.parametrize("wait_s", [0.0, 1.5])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_has_ended_its_side_gets_its_answer(path: str, stream: bool, wait_s: float) -> None:
    engine = Engine(Content("Hel"), wait_s, Content("lo"), DONE)
    with serving(engine) as port:
        plain = half_closed(port, request(path, stream=stream).replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n"))
        answer = half_closed(port, request(path, stream=stream))
    assert b"HTTP/1.1 200 OK" in answer
    assert all(text in plain and text in answer for text in ((b"Hel", b"lo") if stream else (b"Hello",)))
    end = b"\r\n0\r\n\r\n" if stream else b"}"
    assert answer.endswith(end)


def test_a_client_reads_past_what_shows_that_it_is_there() -> None:
    engine = Engine(Content("Hel"), 1.5, Content("lo"), DONE)
    with serving(engine) as port:
        for stream in (True, False):
            with closing(HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
                connection.request("POST", CHAT, json.dumps(PATHS[CHAT] | {"stream": stream}), {"Content-Type": "application/json"})
                connection.sock.shutdown(socket.SHUT_WR)
                answer = connection.getresponse()
                text = answer.read().decode()
            assert answer.status == 200
            if stream:
                assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in values(text)) == "Hello"
            else:
                assert json.loads(text)["choices"][0]["message"]["content"] == "Hello"


def test_all_requests_that_were_sent_before_the_end_are_answered() -> None:
    with serving(Engine(0.2, Content("Hello"), DONE)) as port:
        answer = half_closed(port, request() + b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" + request(stream=True))
    assert (answer.count(b"HTTP/1.1 200 OK"), answer.count(b"Hello"), b"[DONE]" in answer) == (3, 2, True)


def test_an_old_client_that_has_ended_its_side_gets_no_interim_answer() -> None:
    with serving(Engine(0.3, Content("Hello"), DONE)) as port:
        answer = half_closed(port, request().replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (answer.count(b"HTTP/1.1 "), b"Hello" in answer) == (1, True)


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: ", request()[:-5]], ids=["nothing", "half a head", "half a body"])
def test_a_request_that_ends_too_early_is_closed_at_once(sent: bytes) -> None:
    engine = Engine()
    with serving(engine) as port:
        assert half_closed(port, sent) == b""
    assert engine.jobs == []


def test_a_client_that_ends_its_side_after_the_answer_is_closed_at_once() -> None:
    with serving(Engine()) as port, socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
        client.sendall(request())
        client.recv(1 << 16)
        client.shutdown(socket.SHUT_WR)
        b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_a_client_that_ends_its_side_and_goes_later_frees_the_engine() -> None:
    engine = Engine(READ, 60.0)
    with serving(engine) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request())
            client.shutdown(socket.SHUT_WR)
            wait_for(lambda: len(engine.runs) == 1)
            assert b"100 Continue" in client.recv(100)
            assert not engine.runs[0].is_cancelled
        wait_for(lambda: engine.runs[0].is_cancelled)
