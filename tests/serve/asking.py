"""Sends requests to an application, in this process or over a real socket."""

from __future__ import annotations

import asyncio
import json
import selectors
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from tests.serve.engine_double import Engine

from forerun.serve.app import build
from forerun.serve.http_protocol import Protocol

MESSAGES = [{"role": "user", "content": "hello"}]


class HeldClock(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, for code that waits for nothing but time: seconds cost none, and a busy machine
    adds none.
    """

    def __init__(self) -> None:
        super().__init__(selector := Selector())
        self.time = lambda: selector.now_s  # type: ignore[method-assign]


class Selector(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now_s += timeout or 0.0
        return super().select(0.0)


def ask(
    engine: Engine,
    method: str,
    path: str,
    *,
    keys: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
    allowed_hosts: Collection[str] = (),
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    **request: Any,
) -> httpx.Response:
    """The response to one request through the whole application, without a socket."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(build(engine, keys=keys or {}, host=host, allowed_hosts=allowed_hosts), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8484") as client:
            return await client.request(method, path, **request)

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(send())


def chat(engine: Engine, **body: Any) -> httpx.Response:
    """The response to a chat completion request."""
    return ask(engine, "POST", "/v1/chat/completions", json={"messages": MESSAGES} | body)


def values(stream: str) -> list[Any]:
    """The values of a stream's events in order; an event name must be the value's type. Without [DONE]."""
    found = []
    for frame in stream.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]:
        *name, data = (line for line in frame.split("\n") if not line.startswith(":"))
        found.append(json.loads(data.removeprefix("data: ")))
        assert name in ([], [f"event: {found[-1].get('type')}"])
    return found


@contextmanager
def serving(engine: Engine, *, keys: Mapping[str, str] | None = None, **options: Any) -> Iterator[int]:
    """A real server on loopback; gives its port. options: of the application."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = build(engine, keys=keys or {}, host="127.0.0.1", **options)
    server = uvicorn.Server(uvicorn.Config(app, http=Protocol, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
