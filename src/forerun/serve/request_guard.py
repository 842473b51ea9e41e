"""The request guard, one ASGI middleware: checks host, API key and content type before the body, then reads the body within bounds.

A web page in a browser on this machine can send requests here too. It cannot send JSON without a preflight, which succeeds for the pages on
the list alone (415), nor reach the server under a host name of its own (403). Without a valid key no body is read (401). A body may be
BODY_LIMIT_BYTES long (413), and must keep moving (408). Knows headers; knows no socket, and of the routes only which are shared with pages.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Mapping
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.errors import UnauthorisedError
from forerun.serve.auth import tenant_of
from forerun.serve.problems import Problem, problem_of, refused

BODY_LIMIT_BYTES = 32 << 20
SHARED_ROUTES = ("/v1/chat/", "/v1/completions", "/v1/messages", "/v1/models", "/v1/responses")
IMPORT_ROUTE, ARCHIVE = "/v1/forerun/sessions/import", "application/x-tar"  # a type that no page sends without a preflight either
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
BODY_SILENCE_S = 10.0  # longest pause
BODY_GRACE_S, BODY_BYTES_PER_S = 30.0, 16 << 10  # a body takes at most the one, and a second more for each of the other
SLOWER = f"the body paused for {BODY_SILENCE_S:.0f} s, or came at less than {BODY_BYTES_PER_S >> 10} KiB/s for {BODY_GRACE_S:.0f} s"
TOO_SLOW = refused(408, "body_too_slow", SLOWER, "send it without a pause")
LARGER = f"the body is larger than {BODY_LIMIT_BYTES} bytes"
TOO_LARGE = refused(413, "body_too_large", LARGER, "shorten the conversation")
ARCHIVE_HINT = "export it without its state, or stop the server: `forerun bank import` then imports it in place"
ARCHIVE_TOO_LARGE = refused(413, "body_too_large", LARGER, ARCHIVE_HINT)


class RequestGuard:
    """Passes valid requests on, with their body read and the tenant in `scope["state"]["tenant"]`; answers the others.

    keys: API keys by tenant, {} for none. host: the address that the server listens on. origins: of web pages that may use SHARED_ROUTES,
    but nothing that reports on the server or on stored conversations.
    """

    def __init__(self, app: ASGIApp, *, keys: Mapping[str, str], host: str, origins: Collection[str]) -> None:
        self._app, self._keys = app, keys
        self._shared = _sharing(self._admit, origins) if origins else self._admit
        self._listens_everywhere = host in ANY_ADDRESS
        self._names = LOOPBACK_NAMES | {host.lower()} | (_own_names() if self._listens_everywhere else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].startswith(SHARED_ROUTES):
            await self._shared(scope, receive, send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            checked = self._problem(scope) or await _read(receive, scope["path"])
        except ClientDisconnect:
            return
        if isinstance(checked, bytes):
            await self._app(scope, _replay(checked, receive), send)
            return
        response, headers = checked.response(scope["path"]), Headers(scope=scope)
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            response.headers["connection"] = "close"  # the rest of the body is never read
        await response(scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        """What is wrong with a request, by its headers. Sets the tenant if the key is valid."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if not self._is_allowed(host):
            return refused(
                403, "host_not_allowed", f"this server does not answer to the name {host!r}", "use http://127.0.0.1 or http://localhost"
            )
        try:
            scope.setdefault("state", {})["tenant"] = tenant_of(headers, self._keys)
        except UnauthorisedError as error:
            return problem_of(error)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        wanted = ARCHIVE if path == IMPORT_ROUTE else "application/json"
        if scope["method"] == "POST" and kind != wanted:
            return refused(415, "not_json", f"Content-Type is {kind!r}", f"send it with `Content-Type: {wanted}`")
        return None

    def _is_allowed(self, host_header: str) -> bool:
        name = _without_port(host_header).lower()
        return name in self._names or (self._listens_everywhere and _is_address(name))


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


async def _read(receive: Receive, path: str) -> bytes | Problem:
    """The whole body, or what is wrong with it. Its length is counted, whatever was announced. Raises ClientDisconnect."""
    body, now_s = bytearray(), asyncio.get_running_loop().time
    begun_s = now_s()
    while True:
        left_s = begun_s + BODY_GRACE_S + len(body) / BODY_BYTES_PER_S - now_s()
        try:
            async with asyncio.timeout(min(BODY_SILENCE_S, left_s)):
                message = await receive()
        except TimeoutError:
            return TOO_SLOW
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > BODY_LIMIT_BYTES:
            return ARCHIVE_TOO_LARGE if path == IMPORT_ROUTE else TOO_LARGE
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then whatever comes after it: that the client has disconnected."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
