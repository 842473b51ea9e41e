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

import httpx

from forerun.config import Config
from forerun.errors import ForerunError
from forerun.values import PrefillProgress

READING = re.compile(r": reading (\d+)/(\d+) \((\d+) reused\)")
# Reading a long conversation may take minutes, but the server never stays silent for longer than its keepalive.
TIMEOUT = httpx.Timeout(10.0, read=60.0)
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # what a server listens at that listens everywhere, and how it is reached from here
CHANGE_TIMEOUT = httpx.Timeout(10.0, read=3600.0)


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


def url_of(config: Config, given: str) -> str:
    """A server's address, without /v1: as people give it, or if that is "", where one with these settings is reached."""
    host = ANYWHERE.get(config.host, config.host)
    return given.rstrip("/").removesuffix("/v1") or f"http://{f'[{host}]' if ':' in host else host}:{config.port}"


def stream_chat(url: str, body: dict[str, Any], *, key: str = "") -> Iterator[PrefillProgress | Delta | End]:
    """Values of one streamed completion, its End last. `url`: the server's, without /v1; key: the API key, "" for none.

    Raises ForerunError with the server's words.
    """
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    finish, closing = "", dict[str, Any]()
    asking = httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, headers=bearer(key), timeout=TIMEOUT)
    with plain_errors(url), asking as response:
        check(response)
        for line in response.iter_lines():
            if match := READING.match(line):
                yield PrefillProgress(int(match[1]), int(match[2]), int(match[3]), None)
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
    with plain_errors(url):
        body = ask(url, "GET", "/health", key)
        return body | {"model": dict(body["model"])}


def bearer(key: str) -> dict[str, str]:
    """The header that carries an API key, none for ""."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def ask(url: str, method: str, path: str, key: str, **asked: Any) -> dict[str, Any]:
    """The JSON object that answers a request. A change waits for the turn that runs. Raises ForerunError."""
    response = httpx.request(method, f"{url}{path}", headers=bearer(key), timeout=CHANGE_TIMEOUT if method != "GET" else TIMEOUT, **asked)
    check(response)
    body: dict[str, Any] = response.json()
    return body


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    """Turn what goes wrong on the way to a server into a ForerunError."""
    try:
        yield
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise ForerunError(f"{url!r} is no address of a server: {error}", hint="write it like http://127.0.0.1:8484") from error
    except httpx.ConnectError as error:
        raise ForerunError(f"no server answers at {url}", hint="start one with `forerun serve`") from error
    except httpx.HTTPError as error:
        raise ForerunError(f"the connection to {url} failed: {error or type(error).__name__}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ForerunError(f"what answers at {url} is not forerun", hint="start one with `forerun serve`, and give its address") from error


def check(response: httpx.Response) -> None:
    """Raises ForerunError with the server's words if it refuses."""
    if response.is_success:
        return
    response.read()
    if response.status_code == httpx.codes.UNAUTHORIZED:
        what = "does not know the API key that was sent" if "authorization" in response.request.headers else "wants an API key"
        raise ForerunError(f"the server at {response.url.netloc.decode()} {what}", hint="set FORERUN_API_KEY to one of its keys")
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
