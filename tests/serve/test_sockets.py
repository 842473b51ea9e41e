"""Over real sockets: what the server makes of a client that goes, or that does not speak as it should."""

import json
import socket

import pytest
from tests.serve.asking import MESSAGES, serving
from tests.serve.engine_double import Engine
from tests.waiting import wait_for

from forerun.serve import request_guard
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
    monkeypatch.setattr(request_guard, "BODY_LIMIT_S", 0.2)
    engine = Engine()
    with serving(engine) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request(path)[:-3])
        head, _, body = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert "longer than" in json.loads(body)["error"]["message"]
    assert engine.jobs == []
