"""HTTP/1.1 connections as uvicorn parses them, bounded in time and number.

Bounded are the time for a request's headers, the idle time between requests, the time in which a client reads nothing of its response, and
the number of connections without an authorised request. Knows the socket and the shape of errors; knows no route and no key.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.serve.problems import refused

HEADERS_LIMIT_S = 10.0  # from the connection, or the first byte of a later request, to the end of the headers
IDLE_LIMIT_S = 30  # between two requests; longer than the 5 s after which the official SDKs drop a connection themselves
STALL_LIMIT_S = 30.0  # with bytes to send of which the client takes none
UNAUTHORISED_LIMIT = 256  # connections


class Protocol(H11Protocol):
    """One connection."""

    opened_s = 0.0
    _headers_timer: asyncio.TimerHandle
    _stall_timer: asyncio.TimerHandle | None = None

    @property
    def is_authorised(self) -> bool:
        """Whether the request guard has accepted the latest request."""
        return self.scope is not None and "tenant" in self.scope["state"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the headers. Closes other connections if too many are unauthorised."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # any byte that the socket does not take starts the clock of a stall
        self.timeout_keep_alive = IDLE_LIMIT_S
        self.opened_s = self.loop.time()
        self._headers_timer = self.loop.call_later(HEADERS_LIMIT_S, transport.abort)
        evict(self.connections, UNAUTHORISED_LIMIT)

    def data_received(self, data: bytes) -> None:
        """Stop the clock for the headers once a request is under way."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._headers_timer.cancel()
        elif self._headers_timer.cancelled():
            self._headers_timer = self.loop.call_later(HEADERS_LIMIT_S, self.transport.abort)

    def pause_writing(self) -> None:
        """The socket takes no more: start the clock of a stall."""
        super().pause_writing()
        self._await_progress(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """All is sent."""
        super().resume_writing()
        self._stop_stall_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """A run for this client, if there is one, is cancelled by uvicorn's `http.disconnect`."""
        super().connection_lost(exc)
        self._headers_timer.cancel()
        self._stop_stall_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request, and close: what follows them cannot be parsed."""
        problem = refused(400, "bad_request", msg, "send HTTP/1.1")
        body = json.dumps(problem.body()).encode()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _await_progress(self, unsent_bytes: int) -> None:
        self._stall_timer = self.loop.call_later(STALL_LIMIT_S, self._check_progress, unsent_bytes)

    def _check_progress(self, unsent_bytes: int) -> None:
        if (now_bytes := self.transport.get_write_buffer_size()) < unsent_bytes:
            self._await_progress(now_bytes)
        else:
            self.transport.abort()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()


def evict(connections: set[Any], limit: int) -> None:
    """Close a quarter of the unauthorised connections if there are more than `limit`: of the address with the most, the oldest first.

    A quarter at once, so that a flood costs little and each newcomer stays for at least `limit * 3 / 4` later ones. Removes them from
    `connections`.
    """
    if len(connections) <= limit:
        return
    strangers = [each for each in connections if not each.is_authorised]
    if len(strangers) > limit:
        num = Counter(_address(each) for each in strangers)
        strangers.sort(key=lambda each: (-num[_address(each)], each.opened_s))
        for each in strangers[: len(strangers) // 4 + 1]:
            connections.remove(each)
            each.transport.abort()


def _address(connection: Protocol) -> str:
    return connection.client[0] if connection.client else ""
