"""Answers a request from its run, streamed or whole. Knows no dialect and no engine."""

from __future__ import annotations

from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forerun.engine.engine import Run
from forerun.serve.dialect import A, Dialect
from forerun.serve.sse import EventStream, follow
from forerun.values import ModelInfo


async def respond(request: Request, run: Run, parsed: A, info: ModelInfo, dialect: Dialect[A], created_unix_s: int) -> Response:
    """The response to a request: a stream, or the whole answer at its end. Raises what the run raises, and ClientDisconnect."""
    if parsed.streams:
        return EventStream(run, dialect.streamed(parsed, info, created_unix_s=created_unix_s))
    whole = dialect.whole(parsed, info, created_unix_s=created_unix_s)
    async with aclosing(follow(run, request.receive)) as events:
        async for event in events:
            if event is not None:
                whole.take(event)
    return JSONResponse(whole.body())
