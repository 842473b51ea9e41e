"""Gives every request an id, which is in each response and each line of the log, and logs every request at its end.

Wraps the request guard and the routes, so that refusals have an id too. Knows no route and no dialect.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.log import request_id

# OpenAI's SDKs read the first, Anthropic's the second.
ID_HEADERS = ("x-request-id", "request-id")
# Polled every few seconds: logged at level DEBUG unless they fail.
QUIET = ("/health", "/metrics")
# Of Claude Code, Codex, opencode and pi. The ids of parents are not read: what sub-agents share with them is found by content.
AGENT_HEADERS = ("x-claude-code-session-id", "x-claude-code-agent-id", "thread-id", "x-session-id", "session_id")
MAX_AGENT = 64  # characters of an id
CLIENT_GONE = 499  # nginx's status for a client that disconnected before the end of its answer

log = logging.getLogger(__name__)


def family(user_agent: str) -> str:
    """The program that a User-Agent header names first, without its version; "" if it names none."""
    named = re.match(r"[\w.+-]{1,32}", user_agent, re.ASCII)
    return named[0] if named else ""


def agent(headers: Mapping[str, str]) -> str:
    """Which agent of its client sent the request, as coding clients name it in headers; "" if it is not named. Sub-agents of Claude Code
    have the session of their parent.
    """
    return "/".join(value[:MAX_AGENT] for name in AGENT_HEADERS if (value := headers.get(name)))


class Access:
    """Passes every request on with a new id: 32 hexadecimal digits, with which the id in the response's body ends too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id, start_s, status, is_whole = uuid4().hex, time.monotonic(), 0, False
        request_id.set(id)

        async def identified(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(dict.fromkeys(ID_HEADERS, id))
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, identified)
        except BaseException:
            status, is_whole = status or 500, True  # an error, or the server stops: not the client's doing
            raise
        finally:
            status = status if is_whole else CLIENT_GONE
            level = logging.DEBUG if scope["path"].startswith(QUIET) and status < 400 else logging.INFO
            log.log(level, "%s %s: %s after %.2f s", scope["method"], scope["path"], status, time.monotonic() - start_s)
