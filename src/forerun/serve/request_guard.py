"""The doors that every request passes before anything reads it, as one ASGI middleware.

A web page in a browser on this machine can send requests here too. It cannot send JSON without the preflight, which is answered to pages
on the list alone (415), nor reach the server under a name of its own (403). Nothing larger than the limit is ever held (413), and nobody
keeps the server waiting for a body (408). Knows no key, and of the routes only which are for everybody.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.serve.problems import Problem, refused

BODY_LIMIT_BYTES = 32 << 20
SHARED_ROUTES = ("/v1/chat/", "/v1/completions", "/v1/messages", "/v1/models", "/v1/responses")
IMPORT_ROUTE, ARCHIVE = "/v1/forerun/sessions/import", "application/x-tar"  # a type that no page sends without the preflight either
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
BODY_LIMIT_S = 10.0
CLOSES = {"Connection": "close"}  # what else of the body comes is not read
TOO_SLOW = refused(408, "body_too_slow", f"the body took longer than {BODY_LIMIT_S:.0f} s", "send it without a pause", CLOSES)
LARGER = f"the body is larger than {BODY_LIMIT_BYTES} bytes"
TOO_LARGE = refused(413, "body_too_large", LARGER, "shorten the conversation", CLOSES)
ARCHIVE_HINT = "export it without its state, or stop the server: `forerun bank import` then takes it in place"
ARCHIVE_TOO_LARGE = refused(413, "body_too_large", LARGER, ARCHIVE_HINT, CLOSES)


class RequestGuard:
    """Passes on what may come in, with its body read; answers the rest. host: the address that the server listens on.

    origins: of web pages that may use the API itself, but nothing that tells of the server or of what it keeps.
    """

    def __init__(self, app: ASGIApp, *, host: str, origins: Collection[str]) -> None:
        self._app = app
        self._shared = _sharing(self._admit, origins) if origins else self._admit
        self._takes_any_address = host in ANY_ADDRESS
        self._names = LOOPBACK_NAMES | {host.lower()} | (_own_names() if self._takes_any_address else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].startswith(SHARED_ROUTES):
            await self._shared(scope, receive, send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            app, receive = await self._inside(scope, receive)
        except ClientDisconnect:
            return
        await app(scope, receive, send)

    async def _inside(self, scope: Scope, receive: Receive) -> tuple[ASGIApp, Receive]:
        """Who answers the request, and how it gets the body."""
        if problem := self._problem(scope["method"], scope["path"], Headers(scope=scope)):
            return problem.response(scope["path"]), receive
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                body = await _read(receive)
        except TimeoutError:
            return TOO_SLOW.response(scope["path"]), receive
        if body is None:
            return (ARCHIVE_TOO_LARGE if scope["path"] == IMPORT_ROUTE else TOO_LARGE).response(scope["path"]), receive
        return self._app, _replay(body, receive)

    def _problem(self, method: str, path: str, headers: Headers) -> Problem | None:
        """What is wrong with a request as far as its headers tell."""
        host = headers.get("host", "")
        if not self._may_come_as(host):
            return refused(
                403, "host_not_allowed", f"this server does not answer to the name {host!r}", "use http://127.0.0.1 or http://localhost"
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        wanted = ARCHIVE if path == IMPORT_ROUTE else "application/json"
        if method == "POST" and kind != wanted:
            return refused(415, "not_json", f"Content-Type is {kind!r}", f"send it with `Content-Type: {wanted}`")
        return None

    def _may_come_as(self, host_header: str) -> bool:
        name = _without_port(host_header).lower()
        return name in self._names or (self._takes_any_address and _is_address(name))


def _sharing(app: ASGIApp, origins: Collection[str]) -> ASGIApp:
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"], allow_private_network=True)


def _without_port(host_header: str) -> str:
    """The name in `name`, `name:port`, `[address]` or `[address]:port`."""
    if host_header.startswith("["):
        return host_header[1:].partition("]")[0]
    return host_header.partition(":")[0]


def _is_address(name: str) -> bool:
    """An address cannot be pointed elsewhere by whoever owns a domain, a name can."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name}.local"}


async def _read(receive: Receive) -> bytes | None:
    """The whole body, None if it is beyond the limit: counted while it comes, whatever was announced. Raises ClientDisconnect."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > BODY_LIMIT_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then whatever comes after it (that the client has gone)."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
