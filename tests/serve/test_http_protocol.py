"""The bounds of a connection, on a clock and a transport that the test holds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from tests.serve.asking import HeldClock
from uvicorn.server import ServerState

from forerun.serve import http_protocol
from forerun.serve.http_protocol import HEADERS_LIMIT_S, STALL_LIMIT_S, Protocol

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
IDLE_LIMIT_S = 76
WITH_KEY = b"GET / HTTP/1.1\r\nHost: here\r\nX-Api-Key: key\r\n\r\n"


class Transport(asyncio.Transport):
    """Takes everything, but for `unsent_bytes`. end_s: when it was closed."""

    def __init__(self, address: str, connection: Protocol) -> None:
        super().__init__()
        self.connection = connection
        self.unsent_bytes, self.high_bytes, self.address = 0, -1, address
        self.end_s: float | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_bytes = high

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.end_s is not None

    def abort(self) -> None:
        if self.end_s is None:
            loop = asyncio.get_running_loop()
            self.end_s = loop.time()
            loop.call_soon(self.connection.connection_lost, None)

    def write(self, data: Any) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    close = abort


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if b"x-api-key" in dict(scope["headers"]):
        scope["state"]["tenant"] = "ann"
    message: Message = {"type": "http.response.start", "status": 200, "headers": []}
    await send(message)
    await send({"type": "http.response.body", "body": b""})


def on_held_clock(scenario: Callable[[], Awaitable[object]]) -> Any:
    with asyncio.Runner(loop_factory=HeldClock) as runner:
        return runner.run(scenario())  # type: ignore[arg-type]


def connect(state: ServerState, address: str = "192.0.2.1") -> tuple[Protocol, Transport]:
    connection = Protocol(uvicorn.Config(app, log_config=None, ws="none", timeout_keep_alive=IDLE_LIMIT_S), state, {})
    transport = Transport(address, connection)
    connection.connection_made(transport)
    return connection, transport


def test_a_connection_that_sends_nothing_is_closed() -> None:
    async def scenario() -> float | None:
        _, transport = connect(ServerState())
        await asyncio.sleep(1000)
        return transport.end_s

    assert on_held_clock(scenario) == HEADERS_LIMIT_S


@pytest.mark.parametrize("before", [b"", REQUEST], ids=["first", "later"])
def test_headers_that_come_a_byte_a_second_are_not_waited_for(before: bytes) -> None:
    async def scenario() -> float | None:
        connection, transport = connect(ServerState())
        if before:
            connection.data_received(before)
            await asyncio.sleep(0)
        for byte in b"GET / HTTP/1.1\r\nHost: h":
            if not transport.is_closing():
                connection.data_received(bytes([byte]))
            await asyncio.sleep(1)
        return transport.end_s

    assert on_held_clock(scenario) == HEADERS_LIMIT_S


def test_a_connection_may_idle_between_requests_but_not_for_ever() -> None:
    async def scenario() -> float | None:
        connection, transport = connect(ServerState())
        for _ in range(3):
            connection.data_received(WITH_KEY)
            await asyncio.sleep(IDLE_LIMIT_S - 1)
        await asyncio.sleep(1000)
        return transport.end_s

    assert on_held_clock(scenario) == 3 * IDLE_LIMIT_S - 2


def test_a_client_that_reads_slowly_is_waited_for_and_one_that_stops_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> float | None:
        connection, transport = connect(ServerState())
        connection.data_received(WITH_KEY)
        assert transport.high_bytes == 0, "any unsent byte must count"
        transport.unsent_bytes = 1000
        connection.pause_writing()
        for _ in range(9):
            await asyncio.sleep(STALL_LIMIT_S - 1)
            transport.unsent_bytes -= 100
        await asyncio.sleep(1000)
        return transport.end_s

    monkeypatch.setattr(sys.modules[__name__], "IDLE_LIMIT_S", 10_000)
    assert on_held_clock(scenario) == 10 * STALL_LIMIT_S, "nothing was sent in the last of ten periods"


def test_a_client_that_takes_all_after_a_pause_is_not_closed() -> None:
    async def scenario() -> float | None:
        connection, transport = connect(ServerState())
        connection.data_received(WITH_KEY)
        transport.unsent_bytes = 1000
        connection.pause_writing()
        connection.resume_writing()
        await asyncio.sleep(IDLE_LIMIT_S + 1)
        return transport.end_s

    assert on_held_clock(scenario) == IDLE_LIMIT_S


def test_the_oldest_strangers_of_the_busiest_address_leave_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "UNAUTHORISED_LIMIT", 8)

    async def scenario() -> list[list[bool]]:
        state = ServerState()
        rare = [connect(state, "192.0.2.2") for _ in range(2)]
        trusted = [connect(state) for _ in range(4)]
        for connection, _ in trusted:
            connection.data_received(WITH_KEY)
        await asyncio.sleep(1)
        many = []
        for _ in range(7):
            many.append(connect(state))
            await asyncio.sleep(0.1)
        return [[transport.is_closing() for _, transport in each] for each in (rare, trusted, many)]

    assert on_held_clock(scenario) == [[False] * 2, [False] * 4, [True] * 3 + [False] * 4]
