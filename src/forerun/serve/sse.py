"""Streams a run to a client: its events as server-sent events, keepalives in between; cancels the run when the client disconnects.

Knows frames, not dialects: what an event looks like on the wire is the `Stream`'s business.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forerun.engine.engine import Run
from forerun.errors import BusyError, ForerunError
from forerun.serve.dialect import Stream
from forerun.serve.problems import problem_of
from forerun.values import Done, Event, PrefillProgress, QueuePosition

KEEPALIVE_S = 8.0  # a keepalive after so much silence
TICK_S = 1.0
WAIT_LIMIT_S = 600.0  # in the queue
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
END = b"data: [DONE]\n\n"
# Line breaks that JSON does not escape, and that end a line for clients that split text as Python does (httpx).
LINE_BREAKS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}

log = logging.getLogger(__name__)
T = TypeVar("T")


def data(value: Any) -> bytes:
    """A frame with a JSON value, on one line for every client."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.translate(LINE_BREAKS).encode() + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """A frame with a JSON value and an event name."""
    return f"event: {name}\n".encode() + data(value)


def comment(text: str) -> bytes:
    """A comment line, which clients skip. No blank line follows: some parsers take it for an event without data and fail."""
    return f": {text}\n".encode()


def progress(event: Event) -> list[bytes]:
    """Comments on the progress of the request, for people."""
    match event:
        case QueuePosition(ahead):
            return [comment(f"queued, {ahead} ahead")]
        case PrefillProgress(done, total, reused, left_s):
            left = f", {left_s:.0f} s left" if left_s else ""
            return [comment(f"prefill {done}/{total} ({reused} cached){left}")]
        case _:
            return []


async def follow(run: Run, receive: Receive) -> AsyncGenerator[Event | None, None]:
    """Events to the run's end, None for each tick without one. Cancels the run at the end, whatever ended it.

    Raises ClientDisconnect, BusyError (it waited too long), and what the run raises.
    """
    gone, now_s = asyncio.ensure_future(_disconnected(receive)), asyncio.get_running_loop().time
    waiting_since_s = now_s()
    try:
        async with aclosing(_with_ticks(run, gone)) as events:
            async for event in events:
                if gone.done():
                    raise ClientDisconnect
                if now_s() - waiting_since_s > WAIT_LIMIT_S:
                    raise BusyError(f"waited {WAIT_LIMIT_S:.0f} s in the queue", retry_after_s=60, hint="try again in a minute")
                if event is not None and not isinstance(event, QueuePosition):
                    waiting_since_s = now_s() if isinstance(event, Done) else math.inf  # another job may follow, and must wait too
                yield event
    finally:
        run.cancel()
        await _cancel(gone)


async def _with_ticks(run: Run, gone: asyncio.Future[None]) -> AsyncGenerator[Event | None, None]:
    """The run's events; None after each TICK_S without one, and when `gone` is done."""
    events = aiter(run)
    upcoming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            await asyncio.wait((gone, upcoming), timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() or not upcoming.done():
                yield None
            elif event := upcoming.result():
                yield event
                upcoming = asyncio.ensure_future(anext(events, None))
            else:
                return
    finally:
        await _cancel(upcoming)


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class EventStream(Response):
    """A response that streams a run. Headers are sent at once; an error after that is the last frame."""

    def __init__(self, run: Run, stream: Stream) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._run = run
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["is_event_stream"] = True  # a comment between two frames is allowed
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._frames(receive)) as frames:
                async for frame in frames:
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientDisconnect, OSError):
            return
        finally:
            self._run.cancel()

    async def _frames(self, receive: Receive) -> AsyncGenerator[bytes, None]:
        now_s = asyncio.get_running_loop().time
        sent_s = now_s()
        try:
            async with aclosing(follow(self._run, receive)) as events:
                async for event in events:
                    frame = b"".join(self._stream.frames(event)) if event else b""
                    if not frame and now_s() - sent_s >= KEEPALIVE_S:
                        frame = self._stream.keepalive()
                    if frame:
                        yield frame
                        sent_s = now_s()
        except ClientDisconnect:
            raise
        except Exception as error:  # the headers are sent: no handler can answer any more
            if not isinstance(error, ForerunError):
                log.exception("a stream failed")
            yield self._stream.failed(problem_of(error))


async def while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """What the work returns. Cancels it and raises ClientDisconnect if the client disconnects first."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        await _cancel(task)
        await _cancel(gone)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
