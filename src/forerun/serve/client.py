"""The other end of the wire: asks a running server for a chat completion and gives out its stream as values.

Knows the OpenAI chat dialect as this server speaks it, with its comments on progress and its `forerun` object; no engine, no terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import httpx

from forerun.config import Config
from forerun.errors import ForerunError
from forerun.values import Reading, SessionInfo

DEFAULT_URL = f"http://{Config.model_fields['host'].default}:{Config.model_fields['port'].default}"
READING = re.compile(r": reading (\d+)/(\d+) \((\d+) reused\)")
# Reading a long conversation may take minutes, but the server never stays silent for longer than its keepalive.
TIMEOUT = httpx.Timeout(10.0, read=60.0)
CHANGE_TIMEOUT = httpx.Timeout(10.0, read=3600.0)
SESSIONS = "/v1/forerun/sessions"


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer, or of the thoughts before it."""

    kind: Literal["content", "reasoning"]
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The end of an answer. usage: the OpenAI object; report: the `forerun` object, fields of values.Report."""

    finish: str
    usage: dict[str, Any]
    report: dict[str, Any]


def base_of(url: str) -> str:
    """The server's address, which people give with /v1 or without."""
    return url.rstrip("/").removesuffix("/v1")


def stream_chat(url: str, body: dict[str, Any]) -> Iterator[Reading | Delta | End]:
    """Values of one streamed completion, its End last. `url`: the server's, without /v1. Raises ForerunError with the server's words."""
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    finish, closing = "", dict[str, Any]()
    with _plain_errors(url), httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, timeout=TIMEOUT) as response:
        _check(response)
        for line in response.iter_lines():
            if match := READING.match(line):
                yield Reading(int(match[1]), int(match[2]), int(match[3]), None)
            chunk = _chunk(line)
            for choice in chunk.get("choices", ()):
                yield from _deltas(choice["delta"])
                finish = choice["finish_reason"] or finish
            closing = chunk if chunk.get("usage") else closing
    if not finish or not closing:
        raise ForerunError(f"the answer of {url} broke off", hint="the server may have been stopped; see its output")
    yield End(finish, closing["usage"], closing["forerun"])


def health(url: str, *, key: str = "") -> dict[str, Any]:
    """The body of /health, which names the model. key: the API key, "" for none. Raises ForerunError."""
    with _plain_errors(url):
        body = _asked(url, "GET", "/health", key)
        return body | {"model": dict(body["model"])}


@dataclass(frozen=True, slots=True)
class RemoteSessions:
    """The conversations that a running server keeps. key: the API key, "" for none. All raise ForerunError with the server's words."""

    url: str
    key: str

    def all(self) -> list[SessionInfo]:
        """Of the key's owner, the last used first."""
        with _plain_errors(self.url):
            return [SessionInfo(**each) for each in _asked(self.url, "GET", SESSIONS, self.key)["data"]]

    def mark(self, session: SessionInfo, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        """Call it so, pin it or not; None: as it was."""
        with _plain_errors(self.url):
            return SessionInfo(**_asked(self.url, "PATCH", _path(session), self.key, json={"name": name, "pinned": is_pinned}))

    def fork(self, session: SessionInfo, *, fork_id: str | None, name: str) -> SessionInfo:
        """Let a second conversation begin as this one is now. fork_id None: it is given one."""
        with _plain_errors(self.url):
            body = {"id": fork_id, "name": name}
            return SessionInfo(**_asked(self.url, "POST", f"{_path(session)}/fork", self.key, json=body))

    def wipe(self) -> int:
        """Remove all that the key's owner has. Returns the number of conversations."""
        with _plain_errors(self.url):
            return int(_asked(self.url, "DELETE", SESSIONS, self.key)["deleted"])

    def remove(self, session: SessionInfo) -> None:
        """Remove it, and what no other conversation needs."""
        with _plain_errors(self.url):
            _asked(self.url, "DELETE", _path(session), self.key)


def _path(session: SessionInfo) -> str:
    return f"{SESSIONS}/{quote(session.id, safe='')}"


def _asked(url: str, method: str, path: str, key: str, **asked: Any) -> dict[str, Any]:
    """The JSON object that answers a request. A change waits for the turn that runs."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = httpx.request(method, f"{url}{path}", headers=headers, timeout=CHANGE_TIMEOUT if method != "GET" else TIMEOUT, **asked)
    _check(response)
    body: dict[str, Any] = response.json()
    return body


@contextmanager
def _plain_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise ForerunError(f"{url!r} is no address of a server: {error}", hint=f"write it like {DEFAULT_URL}") from error
    except httpx.ConnectError as error:
        raise ForerunError(f"no server answers at {url}", hint="start one with `forerun serve`") from error
    except httpx.HTTPError as error:
        raise ForerunError(f"the connection to {url} failed: {error or type(error).__name__}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ForerunError(f"what answers at {url} is not forerun", hint="start one with `forerun serve`, and give its address") from error


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    response.read()
    _raise(response.json()["error"] if "json" in response.headers.get("content-type", "") else {"message": response.text})


def _chunk(line: str) -> dict[str, Any]:
    if not line.startswith("data: ") or line == "data: [DONE]":
        return {}
    chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
    if "error" in chunk:
        _raise(chunk["error"])
    return chunk


def _deltas(delta: dict[str, Any]) -> Iterator[Delta]:
    if delta.get("reasoning_content"):
        yield Delta("reasoning", delta["reasoning_content"])
    if delta.get("content"):
        yield Delta("content", delta["content"])


def _raise(error: dict[str, Any]) -> None:
    raise ForerunError(f"the server says: {error['message']}", hint=error.get("hint", ""))
