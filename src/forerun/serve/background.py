"""Responses that are made whether or not their client waits: runs that no client's leaving ends, and streams of them from any event on.

Knows the OpenAI Responses dialect's responses; knows no store and no route.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forerun.engine.engine import Run
from forerun.errors import BankError, ForerunError
from forerun.serve.openai_responses_answer import StreamedResponse, WholeResponse, error_of
from forerun.serve.problems import problem_of
from forerun.serve.sse import HEADERS, KEEPALIVE_S, comment, while_connected
from forerun.values import Done, Event, QueuePosition

KEPT_S = 600.0  # for which the events of an ended run can be streamed again
MOST_KEPT = 32  # of ended runs
UNFINISHED = ("queued", "in_progress")

Value = dict[str, Any]
Save = Callable[[Value, str], Awaitable[None]]  # the response object, and the session that it belongs to
log = logging.getLogger(__name__)


class RecordedRun:
    """A run whose response is saved before its last event is passed on: who sees the end finds the response. whole: the response."""

    def __init__(self, run: Run, whole: WholeResponse, save: Save) -> None:
        self._run, self.whole, self._save = run, whole, save

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._run:
            self.whole.take(event)
            if isinstance(event, Done):
                await self._save(self.whole.body(), event.report.session)
            yield event

    def cancel(self) -> None:
        """Stop the run."""
        self._run.cancel()


class BackgroundRun:
    """A run that works by itself. body: the response object as it is now. save: for a response that does not come to its end."""

    def __init__(self, run: RecordedRun, stream: StreamedResponse, save: Save) -> None:
        self._run, self._stream, self._save = run, stream, save
        self._frames = [stream.created()]  # by sequence number
        self._changed = asyncio.Condition()
        self._is_cancelled = self.is_done = False
        self.body = run.whole.pending("queued")

    async def work(self) -> None:
        """Run to the end."""
        try:
            async for event in self._run:
                if not isinstance(event, QueuePosition):
                    self.body = self._run.whole.body() if isinstance(event, Done) else self._run.whole.pending("in_progress")
                await self._add(*self._stream.frames(event))
        except Exception as error:  # noqa: BLE001 - whatever it is, the response names it
            await self._fail(error)
        finally:
            self.is_done = True
            await self._add()

    async def cancel(self) -> None:
        """Stop the run, and wait for its end."""
        self._is_cancelled = True
        self._run.cancel()
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_done)

    async def frames(self, start: int) -> AsyncIterator[bytes]:
        """The frames from this sequence number on, and keepalives, until the run's end."""
        while True:
            for frame in self._frames[start:]:
                yield frame
            start = max(start, len(self._frames))
            if self.is_done:
                return
            if not await self._has_more(start):
                yield comment("keepalive")

    async def _has_more(self, start: int) -> bool:
        try:
            async with asyncio.timeout(KEEPALIVE_S), self._changed:
                return await self._changed.wait_for(lambda: len(self._frames) > start or self.is_done)
        except TimeoutError:
            return False

    async def _fail(self, error: Exception) -> None:
        if not isinstance(error, ForerunError):
            log.error("a response in the background failed", exc_info=error)
        status, reason = ("cancelled", None) if self._is_cancelled else ("failed", error_of(problem_of(error)))
        self.body = self._run.whole.pending(status, reason)
        await self._save(self.body, "")
        await self._add(self._stream.ended(self.body))

    async def _add(self, *frames: bytes) -> None:
        async with self._changed:
            self._frames += frames
            self._changed.notify_all()


class BackgroundRuns:
    """Those that run, and for a while those that have ended, by tenant and id."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], BackgroundRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, tenant: str, id: str, run: BackgroundRun) -> None:
        """Let it work."""
        self._runs[tenant, id] = run
        task = asyncio.create_task(run.work())
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(task, (tenant, id)))

    def of(self, tenant: str, id: str) -> BackgroundRun | None:
        """The run of this response, None if there is none, or no more."""
        return self._runs.get((tenant, id))

    def forget(self, tenant: str, id: str) -> None:
        """Let go of the run of a response, if there is one."""
        self._runs.pop((tenant, id), None)

    def _ended(self, task: asyncio.Task[None], name: tuple[str, str]) -> None:
        self._tasks.discard(task)
        done = [each for each, run in self._runs.items() if run.is_done]
        for each in done[: max(0, len(done) - MOST_KEPT)]:
            del self._runs[each]
        asyncio.get_running_loop().call_later(KEPT_S, self._runs.pop, name, None)


class FrameStream(Response):
    """A response of frames. A client that leaves ends nothing but this."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["is_event_stream"] = True  # a comment between two frames is allowed
        try:
            await while_connected(self._send(send), receive)
        except (ClientDisconnect, OSError):
            return

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def settled(body: Value) -> Value:
    """A stored response object that no run continues: one that was not finished has failed."""
    if body["status"] not in UNFINISHED:
        return body
    message = "the server was stopped while this response was made, or could not store its end"
    return body | {"status": "failed", "error": {"code": "server_error", "message": message}}


def saving(save: Save, on_failure: Callable[[], None]) -> Save:
    """As `save`, for a response that its client gets in any case: a failure is logged, and `on_failure` is called."""

    async def try_to_save(body: Value, session: str) -> None:
        try:
            await save(body, session)
        except BankError as error:
            log.warning("a response is not stored: %s", error)
            on_failure()

    return try_to_save
