"""HTTP/1.1 connections as uvicorn parses them, bounded in time and number.

Bounded are the time for a request's headers, the time in which a client reads nothing of its response, and the number of connections
without an authorised request; uvicorn bounds the idle time between requests. A client that has ended its side of the connection still gets
its answer. Knows the socket and the shape of errors; knows no route and no key.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.serve.problems import refused

HEADERS_LIMIT_S = 10.0  # from the connection, or the first byte of a later request, to the end of the headers
STALL_LIMIT_S = 30.0  # with bytes to send of which the client takes none
UNAUTHORISED_LIMIT = 256  # connections
FIRST_PROBE_S, PROBE_GROWTH = 0.1, 10  # few probes: some clients take five interim responses at most
INTERIM, COMMENT = b"HTTP/1.1 100 Continue\r\n\r\n", b":\n"

log = logging.getLogger(__name__)


class Protocol(H11Protocol):
    """One connection."""

    opened_s = 0.0
    _headers_timer: asyncio.TimerHandle
    _stall_timer: asyncio.TimerHandle | None = None
    _probe_timer: asyncio.TimerHandle | None = None  # set since the client has ended its side

    @property
    def is_authorised(self) -> bool:
        """Whether the request guard has accepted the latest request."""
        return self.scope is not None and "tenant" in self.scope["state"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the headers. Closes other connections if too many are unauthorised."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # any byte that the socket does not take starts the clock of a stall
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

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answers to all requests that are complete."""
        if self._is_answered() or self.cycle.more_body:
            return False
        if self._probe_timer is None:
            self._probe(FIRST_PROBE_S)
        return True

    def on_response_complete(self) -> None:
        """Close the connection if no further request can come."""
        super().on_response_complete()
        if self._probe_timer is not None and self._is_answered() and not self.transport.is_closing():
            self.transport.close()

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
        if self._probe_timer is not None:
            self._probe_timer.cancel()

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade is an offer: it is passed over, and the request is answered."""

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request, and close: what follows them cannot be parsed."""
        problem = refused(400, "bad_request", msg, "send HTTP/1.1")
        body = json.dumps(problem.body()).encode()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _probe(self, pause_s: float) -> None:
        """Send what a client that waits skips. One that has gone looks the same until its machine refuses bytes; then writing fails."""
        if not self._is_answered():
            if self.cycle.response_started and self.scope["state"].get("is_event_stream"):
                self.transport.write(self.conn.send(h11.Data(COMMENT)) or b"")
            elif not self.cycle.response_started and self.scope["http_version"] != "1.0":
                self.transport.write(INTERIM)
        self._probe_timer = self.loop.call_later(pause_s, self._probe, pause_s * PROBE_GROWTH)

    def _await_progress(self, unsent_bytes: int) -> None:
        self._stall_timer = self.loop.call_later(STALL_LIMIT_S, self._check_progress, unsent_bytes)

    def _check_progress(self, unsent_bytes: int) -> None:
        if (now_bytes := self.transport.get_write_buffer_size()) < unsent_bytes:
            self._await_progress(now_bytes)
        else:
            log.warning("the client took nothing of its response for %g s: its connection is closed", STALL_LIMIT_S)
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
