"""A client that disconnects frees a real engine, whatever it waits for; meanwhile it gets keepalives. The test holds the model."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.engines import Rig
from tests.fake_family import Script
from tests.serve.asking import serving
from tests.talking import tokenizer
from tests.waiting import LIMIT_S, wait_for

from forerun.serve import http_protocol, sse

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
# Passes that a request may make: its prompt takes three; the call has no name yet, so that nothing of it can be sent.
PASSES = {"prefill": 1, "decode": 6, "buffering": 12}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
CALL = '<tool_call>{"arguments": {"path": "' + "never sent " * 500
SMALL_BYTES, connection_made = 1 << 14, http_protocol.Protocol.connection_made
SIGNS = {"/v1/chat/completions": b": keepalive\n", "/v1/messages": b"event: ping\n", "/v1/responses": b"event: response.in_progress\n"}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    rig = Rig(None)
    yield rig
    rig.gate.open()
    rig.engine.worker.close(LIMIT_S)


@pytest.fixture(scope="module")
def port(rig: Rig) -> Iterator[int]:
    with serving(rig.engine) as port:
        yield port


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_S", 0.04)
    monkeypatch.setattr(sse, "TICK_S", 0.02)


def body(path: str, name: str, *, stream: bool) -> dict[str, Any]:
    """A request of some 1,500 tokens, of a conversation of its own."""
    text, function = name + " a" * 1500, {"name": "read", "parameters": SCHEMA}
    off, messages = {"enable_thinking": False}, [{"role": "user", "content": text}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "tools": [{"type": "function", "function": function}], **off},
        "/v1/completions": {"prompt": text},
        "/v1/messages": {"messages": messages, "tools": [{"name": "read", "input_schema": SCHEMA}], "thinking": {"type": "disabled"}},
        "/v1/responses": {"input": text, "tools": [{"type": "function", **function}], "reasoning": {"effort": "none"}},
    }
    return bodies[path] | {"stream": stream, "max_tokens": 2000, "max_output_tokens": 2000, "temperature": 0}


def sent(port: int, path: str, name: str, *, stream: bool, **more: Any) -> socket.socket:
    content = json.dumps(body(path, name, stream=stream) | more).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(head.encode() + content)
    return client


def writing(text: str) -> Script:
    """A script that writes this text from the first sampled token."""
    ids = tokenizer().encode(text, tenant="script")
    begun: list[int] = []

    def script(position: int, token: int, total: int) -> int:
        begun[:] = begun or [position]
        return ids[(position - begun[0]) % len(ids)]

    return script


def with_small_buffer(connection: http_protocol.Protocol, transport: asyncio.Transport) -> None:
    """`connection_made` of a connection of which the kernel holds few bytes."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)
    connection_made(connection, transport)


def num_cancelled(rig: Rig) -> float:
    return rig.engine.registry.get_sample_value("forerun_requests_total", {"outcome": "cancelled"}) or 0


def is_free(rig: Rig) -> bool:
    health = rig.engine.health()
    return (health.running, health.waiting) == (0, 0)


def held(rig: Rig, num_passes: int) -> int:
    """Hold the model after this many more passes. Returns the number of passes so far."""
    rig.gate.hold(num_passes)
    return len(rig.gate.rows) + num_passes + 1


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("phase", PASSES)
def test_disconnecting_from_a_running_request_frees_the_engine(rig: Rig, port: int, path: str, stream: bool, phase: str) -> None:
    before, standing = num_cancelled(rig), held(rig, PASSES[phase])
    rig.family.script = writing(CALL) if phase == "buffering" else lambda position, token, total: 33
    with sent(port, path, f"{path} {stream} {phase}", stream=stream):
        wait_for(lambda: len(rig.gate.rows) == standing)
    rig.gate.open()
    wait_for(lambda: is_free(rig))
    assert num_cancelled(rig) == before + 1


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", PATHS)
def test_disconnecting_from_a_queued_request_removes_it(rig: Rig, port: int, path: str, stream: bool) -> None:
    before, standing = num_cancelled(rig), held(rig, 0)
    with sent(port, path, f"{path} {stream} first", stream=stream):
        wait_for(lambda: len(rig.gate.rows) == standing)
        with sent(port, path, f"{path} {stream} second", stream=stream):
            wait_for(lambda: rig.engine.health().waiting == 1)
        wait_for(lambda: rig.engine.health().waiting == 0)
        assert num_cancelled(rig) == before + 1
    rig.gate.open()
    wait_for(lambda: is_free(rig))
    assert num_cancelled(rig) == before + 2


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_left_is_logged_with_499(rig: Rig, port: int, path: str, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    standing = held(rig, 0)
    rig.family.script = lambda position, token, total: 33
    with caplog.at_level(logging.INFO):
        with sent(port, path, f"{path} {stream} logged", stream=stream):
            wait_for(lambda: len(rig.gate.rows) == standing)
        rig.gate.open()
        wait_for(lambda: f"POST {path}: " in caplog.text)
    assert f"POST {path}: 499 after " in caplog.text
    wait_for(lambda: is_free(rig))


def test_a_client_that_stops_reading_is_cut_off_logged_and_counted(
    rig: Rig, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(http_protocol, "STALL_LIMIT_S", 0.2)
    monkeypatch.setattr(http_protocol.Protocol, "connection_made", with_small_buffer)
    before, rig.family.script = num_cancelled(rig), lambda position, token, total: 33
    rig.gate.open()
    large = {"logprobs": True, "top_logprobs": 20}  # a kilobyte or more a token
    with sent(port, PATHS[0], "stalls", stream=True, **large) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        wait_for(lambda: num_cancelled(rig) == before + 1)
        wait_for(lambda: is_free(rig))
        wait_for(lambda: f"POST {PATHS[0]}: 499 after " in caplog.text)
    (line,) = (record for record in caplog.records if "took nothing of its response for 0.2 s" in record.message)
    assert line.levelno == logging.WARNING


@pytest.mark.parametrize("path", SIGNS)
def test_a_client_that_waits_for_a_buffered_call_gets_keepalives(rig: Rig, port: int, path: str) -> None:
    standing = held(rig, PASSES["buffering"])
    rig.family.script = writing(CALL)
    with sent(port, path, f"{path} hears", stream=True) as client:
        wait_for(lambda: len(rig.gate.rows) == standing)
        received = client.recv(1 << 16)  # what came before the model stood, too
        before = received.count(SIGNS[path])
        while received.count(SIGNS[path]) < before + 3:
            received += client.recv(1 << 16)
    rig.gate.open()
    wait_for(lambda: is_free(rig))
    assert b"never" not in received
