"""A client: requests a chat completion from a running server and yields its stream as values.

Knows this server's OpenAI chat dialect, with its progress comments and its `forerun` object; no engine, no terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from forerun.config import Config
from forerun.errors import ForerunError
from forerun.network import proxies, uses_proxy
from forerun.values import PrefillProgress, QueuePosition

QUEUED = re.compile(r": queued, (\d+) ahead")
PREFILL = re.compile(r": prefill (\d+)/(\d+) \((\d+) cached\)")
# The prefill of a long conversation may take minutes, but the server is never silent for longer than its keepalive.
TIMEOUT = httpx.Timeout(10.0, read=60.0)
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # the address of a server that listens on all, and how to reach it from here
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
    """A server's address without /v1: the given one, or if that is "", that of a server with these settings."""
    host = ANY_ADDRESS.get(config.host, config.host)
    return given.rstrip("/").removesuffix("/v1") or f"http://{f'[{host}]' if ':' in host else host}:{config.port}"


def stream_chat(url: str, body: dict[str, Any], *, key: str = "") -> Iterator[QueuePosition | PrefillProgress | Delta | End]:
    """Values of one streamed completion, its End last. `url`: the server's, without /v1; key: the API key, "" for none.

    Raises ForerunError with the server's message.
    """
    request = body | {"stream": True, "stream_options": {"include_usage": True}}
    finish, closing = "", dict[str, Any]()
    with plain_errors(url), streamed("POST", f"{url}/v1/chat/completions", json=request, headers=bearer(key), timeout=TIMEOUT) as response:
        check(response)
        for line in response.iter_lines():
            yield from _progress(line)
            chunk = _chunk(line)
            for choice in chunk.get("choices", ()):
                yield from _deltas(choice["delta"])
                finish = choice["finish_reason"] or finish
            closing = chunk if chunk.get("usage") else closing
    if not finish or not closing:
        raise ForerunError(f"the answer of {url} was cut off", hint="the server may have been stopped; see its output")
    yield End(finish, closing["usage"], closing["forerun"])


def health(url: str, *, key: str = "") -> dict[str, Any]:
    """The body of /health, which names the model. key: the API key, "" for none. Raises ForerunError."""
    with plain_errors(url):
        body = request_json(url, "GET", "/health", key)
        return body | {"model": dict(body["model"])}


def bearer(key: str) -> dict[str, str]:
    """The header that carries an API key, none for ""."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def request_json(url: str, method: str, path: str, key: str, **options: Any) -> dict[str, Any]:
    """The JSON object that answers a request. A change waits for the running request. Raises ForerunError."""
    headers, timeout = bearer(key) | options.pop("headers", {}), CHANGE_TIMEOUT if method != "GET" else TIMEOUT
    response = httpx.request(method, f"{url}{path}", headers=headers, timeout=timeout, trust_env=uses_proxy(url), **options)
    check(response)
    body: dict[str, Any] = response.json()
    return body


def streamed(method: str, url: str, **options: Any) -> AbstractContextManager[httpx.Response]:
    """httpx.stream, past the environment's proxy if the server is on this machine. Raises ForerunError."""
    return httpx.stream(method, url, trust_env=uses_proxy(url), **options)


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    """Turn connection errors and unexpected responses into a ForerunError."""
    try:
        yield
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise ForerunError(f"{url!r} is not the address of a server: {error}", hint="write it like http://127.0.0.1:8484") from error
    except httpx.ConnectError as error:
        via = proxies() if uses_proxy(url) else ""
        hint = f"start one with `forerun serve`{f' ({via})' if via else ''}"
        raise ForerunError(f"no server answers at {url}", hint=hint) from error
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
        raise ForerunError(f"the connection to {url} was lost", hint="the server may have been stopped; see its output") from error
    except httpx.HTTPError as error:
        raise ForerunError(f"the connection to {url} failed: {error or type(error).__name__}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ForerunError(f"what answers at {url} is not forerun", hint="start one with `forerun serve`, and give its address") from error


def check(response: httpx.Response) -> None:
    """Raises ForerunError with the server's message if the response is an error."""
    if response.is_success:
        return
    response.read()
    if response.status_code == httpx.codes.UNAUTHORIZED:
        what = "does not know the API key that was sent" if "authorization" in response.request.headers else "requires an API key"
        raise ForerunError(f"the server at {response.url.netloc.decode()} {what}", hint="set FORERUN_API_KEY to one of its keys")
    _raise(response.json()["error"] if "json" in response.headers.get("content-type", "") else {"message": response.text})


def _progress(line: str) -> Iterator[QueuePosition | PrefillProgress]:
    if match := QUEUED.match(line):
        yield QueuePosition(int(match[1]))
    if match := PREFILL.match(line):
        yield PrefillProgress(int(match[1]), int(match[2]), int(match[3]), None)


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
    raise ForerunError(f"the server answers: {error['message']}", hint=error.get("hint", ""))
