"""The request guard, one ASGI middleware: checks host, API key, content type and coding before the body, then reads it within bounds.

A web page in a browser on this machine can send requests here too. It cannot send JSON without a preflight, which succeeds for the pages on
the list alone (415), nor reach the server under a host name of its own (403), nor know an API key. Without a valid key no body is read
(401). A body may be BODY_LIMIT_BYTES long, as sent and decoded (413), and must keep moving (408). Knows headers; knows no socket, and of
the routes only which are shared with pages.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.errors import UnauthorisedError
from forerun.network import is_loopback
from forerun.serve.auth import tenant_of
from forerun.serve.content_coding import CODINGS, CodingError, Decoder, codings_of
from forerun.serve.problems import Problem, problem_of, refused

BODY_LIMIT_BYTES = 32 << 20
SHARED_ROUTES = ("/v1/chat/", "/v1/completions", "/v1/messages", "/v1/models", "/v1/responses")
IMPORT_ROUTE, ARCHIVE = "/v1/forerun/sessions/import", "application/x-tar"  # a type that no page sends without a preflight either
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
# This machine, as it and its containers call it. Nobody can register a domain below .localhost or .internal.
LOCAL_NAMES = ("localhost", "*.localhost", "host.*.internal", *ANY_ADDRESS)
LINGER_S = 0.1  # after a refusal, before its connection is closed
BODY_SILENCE_S = 10.0  # longest pause
BODY_GRACE_S, BODY_BYTES_PER_S = 30.0, 16 << 10  # a body takes at most the one, and a second more for each of the other
SLOWER = f"the body paused for {BODY_SILENCE_S:.0f} s, or came at less than {BODY_BYTES_PER_S >> 10} KiB/s for {BODY_GRACE_S:.0f} s"
TOO_SLOW = refused(408, "body_too_slow", SLOWER, "send it without a pause")
LARGER = f"the body is larger than {BODY_LIMIT_BYTES} bytes"
TOO_LARGE = refused(413, "body_too_large", LARGER, "shorten the conversation")
ARCHIVE_HINT = "export it without its state, or stop the server: `forerun bank import` then imports it directly"
HOST_HINT = "use http://127.0.0.1 or http://localhost, or name it in --allowed-hosts"
CODING_HINT = f"send it without Content-Encoding, or in one of {', '.join(CODINGS)}"
ARCHIVE_TOO_LARGE = refused(413, "body_too_large", LARGER, ARCHIVE_HINT)


class RequestGuard:
    """Passes valid requests on, with their body read and the tenant in `scope["state"]["tenant"]`; answers the others.

    keys: API keys by tenant, {} for none. host: the address that the server listens on. allowed_hosts: further names of the server, and
    `*.suffix` for all below a suffix. origins: of web pages that may use SHARED_ROUTES, but nothing that reports on the server or on stored
    conversations.
    """

    def __init__(
        self, app: ASGIApp, *, keys: Mapping[str, str], host: str, allowed_hosts: Collection[str], origins: Collection[str]
    ) -> None:
        self._app, self._keys = app, keys
        self._shared = _sharing(self._admit, origins) if origins else self._admit
        self._listens_everywhere = host in ANY_ADDRESS
        self._names = [*LOCAL_NAMES, host.lower().removesuffix("."), *allowed_hosts, *(_own_names() if self._listens_everywhere else ())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].startswith(SHARED_ROUTES):
            await self._shared(scope, receive, send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            checked = self._problem(scope) or await _read(receive, scope["path"], codings_of(_content_encoding(scope)))
        except ClientDisconnect:
            return
        if isinstance(checked, bytes):
            await self._app(scope, _replay(checked, receive), send)
            return
        response, headers = checked.response(scope["path"]), Headers(scope=scope)
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            response.headers["connection"] = "close"  # the rest of the body is never read
            await response(scope, receive, _lingering(send))
        else:
            await response(scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        """What is wrong with a request, by its headers. Sets the tenant if the key is valid."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if not self._is_allowed(host):
            return refused(403, "host_not_allowed", f"this server does not answer to the name {host!r}", HOST_HINT)
        try:
            scope.setdefault("state", {})["tenant"] = tenant_of(headers, self._keys)
        except UnauthorisedError as error:
            return problem_of(error)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        wanted = ARCHIVE if _is_import(path) else "application/json"
        if scope["method"] == "POST" and kind != wanted:
            return refused(415, "not_json", f"Content-Type is {kind!r}", f"send it with `Content-Type: {wanted}`")
        return _coding_problem(_content_encoding(scope))

    def _is_allowed(self, host_header: str) -> bool:
        """Whether a request for this name may be answered. With keys, any: a page that has the server under its own name knows none."""
        name = _without_port(host_header).lower().removesuffix(".")
        if self._keys or is_loopback(name) or (self._listens_everywhere and _is_address(name)):
            return True
        return any(fnmatchcase(name, pattern) for pattern in self._names)


def tenant_of_request(request: Request) -> str:
    """The tenant of a request that the guard has passed on."""
    return str(request.state.tenant)


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


def _content_encoding(scope: Scope) -> str:
    return ", ".join(Headers(scope=scope).getlist("content-encoding"))


def _coding_problem(header: str) -> Problem | None:
    """What is wrong with a Content-Encoding. One coding is decoded, since each more multiplies what a small body can come to."""
    codings, accepted = codings_of(header), {"Accept-Encoding": ", ".join(CODINGS)}
    if len(codings) > 1:
        return refused(415, "unsupported_encoding", f"the body has {len(codings)} codings: {header}", CODING_HINT, accepted)
    if codings and codings[0] not in CODINGS:
        return refused(415, "unsupported_encoding", f"Content-Encoding is {codings[0]!r}", CODING_HINT, accepted)
    return None


def _is_import(path: str) -> bool:
    return path.removesuffix("/") == IMPORT_ROUTE


async def _read(receive: Receive, path: str, codings: list[str]) -> bytes | Problem:
    """The whole body, decoded, or what is wrong with it. Its length is counted, whatever was announced. Raises ClientDisconnect."""
    body, num_received, begun_s = bytearray(), 0, asyncio.get_running_loop().time()
    decoder, has_more = Decoder(codings[0]) if codings else None, True
    try:
        while has_more:
            message = await _receive(receive, begun_s, num_received)
            received, has_more = message.get("body", b""), message.get("more_body", False)
            num_received += len(received)
            for piece in decoder.pieces(received) if decoder else (received,):
                body += piece
                if max(len(body), num_received) > BODY_LIMIT_BYTES:
                    return ARCHIVE_TOO_LARGE if _is_import(path) else TOO_LARGE
                await asyncio.sleep(0)  # a small body may come to many pieces
        if decoder:
            decoder.finish()
    except TimeoutError:
        return TOO_SLOW
    except CodingError as error:
        return refused(400, "bad_encoding", f"the body cannot be decoded: {error}", CODING_HINT)
    return bytes(body)


async def _receive(receive: Receive, begun_s: float, num_received: int) -> Message:
    """The next part of the body. Raises TimeoutError if it is late, ClientDisconnect."""
    left_s = begun_s + BODY_GRACE_S + num_received / BODY_BYTES_PER_S - asyncio.get_running_loop().time()
    async with asyncio.timeout(min(BODY_SILENCE_S, left_s)):
        message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message


def _lingering(send: Send) -> Send:
    """Sends an answer, and ends it a little later: a close while its client still sends may take the answer away from it."""

    async def linger(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        await asyncio.sleep(LINGER_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return linger


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then whatever comes after it: that the client has disconnected."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
