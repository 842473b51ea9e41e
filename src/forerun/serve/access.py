"""Gives every request an id, which each response carries and each line of the log, and tells of every request once it is over.

Outside of doors and routes: whoever answers, the id is there. Knows no route and no dialect.
"""

from __future__ import annotations

import logging
import time
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.log import request_id

# The official SDKs read the one (OpenAI) and the other (Anthropic).
ID_HEADERS = ("x-request-id", "request-id")
# Asked by programs, every few seconds.
QUIET = ("/health", "/metrics")

log = logging.getLogger(__name__)


class Access:
    """Passes every request on, under an id of its own: 32 hexadecimal digits, with which the id in an answer's body ends too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id, begun_s, status = uuid4().hex, time.monotonic(), 0
        request_id.set(id)

        async def identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(dict.fromkeys(ID_HEADERS, id))
            await send(message)

        try:
            await self._app(scope, receive, identified)
        except Exception:
            status = status or 500  # that is how it is answered, further out
            raise
        finally:
            level = logging.DEBUG if scope["path"].startswith(QUIET) and status < 400 else logging.INFO
            told = "%s %s: %s after %.2f s", scope["method"], scope["path"], status or "no answer", time.monotonic() - begun_s
            log.log(level, *told)
