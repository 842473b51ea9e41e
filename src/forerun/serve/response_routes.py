"""Routes of the Responses API: create, continue, show, cancel, remove. Each key sees only its own responses.

Knows the engine's facade and the dialect's parts; knows no disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from forerun.engine.engine import Engine, Run
from forerun.errors import BadRequestError, UnknownResponseError
from forerun.log import request_id
from forerun.serve import openai_responses
from forerun.serve.access import family
from forerun.serve.background import UNFINISHED, BackgroundRun, BackgroundRuns, FrameStream, RecordedRun, saving, settled
from forerun.serve.dialect import Dialect
from forerun.serve.fields import LARGE_BYTES, Fields, parse_body, validate
from forerun.serve.openai_responses_answer import ParsedRequest, StreamedResponse, WholeResponse
from forerun.serve.rate import Rate
from forerun.serve.request_guard import tenant_of_request
from forerun.serve.respond import respond
from forerun.serve.routing import RawPathRoute
from forerun.serve.sequential_run import start
from forerun.serve.stored_items import ItemsQuery, QueryNumber, conversation, input_of, page, reference_of
from forerun.values import StoredResponse

ROOT = "/v1/responses"
RESPONSES = Dialect("resp_", openai_responses.parse, StreamedResponse, WholeResponse)
Value = dict[str, Any]


class ShowQuery(Fields):
    """Whether the events are streamed, and from which on."""

    stream: Literal["true", "false"] = "false"
    starting_after: QueryNumber | None = Field(None, ge=0)


class Routes:
    """One method per route. The request guard has checked the API key before."""

    def __init__(self, engine: Engine, rate: Rate) -> None:
        self._engine, self._rate = engine, rate
        self._runs = BackgroundRuns()

    def all(self) -> list[RawPathRoute]:
        """All of these routes."""
        one = f"{ROOT}/{{id}}"
        return [
            RawPathRoute("POST", ROOT, self.create),
            RawPathRoute("POST", f"{ROOT}/compact", self.compact),
            RawPathRoute("POST", f"{one}/cancel", self.cancel),
            RawPathRoute("GET", f"{one}/input_items", self.show_items),
            RawPathRoute("GET", one, self.show),
            RawPathRoute("DELETE", one, self.remove),
        ]

    async def create(self, request: Request) -> Response:
        """POST /v1/responses"""
        tenant, id, begun_s = tenant_of_request(request), f"{RESPONSES.id_prefix}{request_id.get()}", time.time()
        self._rate.take(tenant)
        body = await self._resolved(tenant, await parse_body(await request.body(), dict))
        parsed = await self._parsed(tenant, id, body, num_bytes=len(await request.body()))
        client = family(request.headers.get("user-agent", ""))
        run = await start(self._engine, [replace(job, client=client) for job in parsed.jobs])
        answer = partial(respond, request, parsed=parsed, info=self._engine.info, dialect=RESPONSES, created_unix_s=int(begun_s))
        if not parsed.echo["store"]:
            return await answer(run)
        new = StoredResponse(id, parsed.echo["previous_response_id"] or "", "", begun_s, {}, input_of(body))
        if parsed.echo["background"]:
            return await self._work(tenant, new, run, parsed)
        save = saving(partial(self._put, tenant, new), lambda: parsed.echo.update(store=False))
        return await answer(RecordedRun(run, WholeResponse(parsed, self._engine.info, created_unix_s=int(begun_s)), save))

    async def compact(self, request: Request) -> Response:
        """POST /v1/responses/compact: refused."""
        hint = f"ask for a summary with POST {ROOT}, and begin the next conversation with it"
        raise BadRequestError("compaction makes items that only OpenAI can read: there is none here", hint=hint)

    async def show(self, request: Request) -> Response:
        """GET /v1/responses/ID"""
        tenant, id, query = tenant_of_request(request), request.path_params["id"], validate(ShowQuery, dict(request.query_params))
        body = await self._body(tenant, id)
        if query.stream == "false":
            return JSONResponse(body)
        run = self._runs.of(tenant, id)
        if run is None:
            message = f"the events of {id} are not kept: only those of responses with `background`, until some minutes after their end"
            raise BadRequestError(message, param="stream", hint="leave `stream` out for the response itself")
        return FrameStream(run.frames(0 if query.starting_after is None else query.starting_after + 1))

    async def show_items(self, request: Request) -> Response:
        """GET /v1/responses/ID/input_items"""
        tenant, id, query = tenant_of_request(request), request.path_params["id"], validate(ItemsQuery, dict(request.query_params))
        await self._engine.responses.one(tenant, id)
        return JSONResponse(page(await self._engine.responses.chain(tenant, id), query))

    async def cancel(self, request: Request) -> Response:
        """POST /v1/responses/ID/cancel: of one in the background. One that has ended stays as it is."""
        tenant, id = tenant_of_request(request), request.path_params["id"]
        body = await self._body(tenant, id)
        if not body["background"]:
            hint = "close its connection to end one that runs without `background`"
            raise BadRequestError(f"{id} cannot be cancelled: it is not a background response", hint=hint)
        await self._stop(tenant, id)
        return JSONResponse(await self._body(tenant, id))

    async def remove(self, request: Request) -> Response:
        """DELETE /v1/responses/ID"""
        tenant, id = tenant_of_request(request), request.path_params["id"]
        await self._engine.responses.one(tenant, id)
        await self._stop(tenant, id)
        self._runs.forget(tenant, id)
        await self._engine.responses.remove(tenant, id)
        return JSONResponse({"id": id, "object": "response", "deleted": True})

    async def _parsed(self, tenant: str, id: str, body: Value, *, num_bytes: int) -> ParsedRequest:
        previous = await self._previous(tenant, body.get("previous_response_id"))
        parse = partial(openai_responses.parse, body, self._engine.info, id=id, tenant=tenant, previous=previous)
        return await asyncio.to_thread(parse) if previous or num_bytes >= LARGE_BYTES else parse()

    async def _previous(self, tenant: str, id: Any) -> list[Mapping[str, Any]]:
        """The items of the responses that a request continues. Raises UnknownPreviousResponseError, BadRequestError."""
        if not isinstance(id, str):
            return []  # none, or refused by the schema
        chain = await self._engine.responses.chain(tenant, id)
        if self._current(tenant, chain[-1])["status"] in UNFINISHED:
            message = f"previous_response_id: {id} is not finished"
            raise BadRequestError(message, param="previous_response_id", hint="wait for its end, or cancel it")
        return conversation(chain)

    async def _resolved(self, tenant: str, body: Value) -> Value:
        """The body with the items of stored answers in the place of references to them. Others stay, and are refused."""
        items = body.get("input")
        return body | {"input": [await self._item(tenant, each) for each in items]} if isinstance(items, list) else body

    async def _item(self, tenant: str, item: Any) -> Any:
        place = reference_of(item)
        if place is None:
            return item
        try:
            output = (await self._engine.responses.one(tenant, place.response_id)).body["output"]
        except UnknownResponseError:
            return item
        return output[place.at] if place.at < len(output) else item

    async def _work(self, tenant: str, new: StoredResponse, run: Run, parsed: ParsedRequest) -> Response:
        """Let the run work in the background, once its response is stored: as it is now, or as a stream."""
        save, info, created_unix_s = partial(self._update, tenant, new), self._engine.info, int(new.begun_s)
        recorded = RecordedRun(run, WholeResponse(parsed, info, created_unix_s=created_unix_s), saving(save, lambda: None))
        background = BackgroundRun(recorded, StreamedResponse(parsed, info, created_unix_s=created_unix_s), saving(save, lambda: None))
        try:
            await self._put(tenant, new, background.body, "")
        except BaseException:
            run.cancel()
            raise
        self._runs.start(tenant, new.id, background)
        return FrameStream(background.frames(0)) if parsed.streams else JSONResponse(background.body)

    async def _put(self, tenant: str, new: StoredResponse, body: Value, session: str) -> None:
        await self._engine.responses.put(tenant, replace(new, body=body, session=session))

    async def _update(self, tenant: str, new: StoredResponse, body: Value, session: str) -> None:
        await self._engine.responses.update(tenant, replace(new, body=body, session=session))

    async def _body(self, tenant: str, id: str) -> Value:
        """The response object as it is now. Raises UnknownResponseError: what is removed is not shown, even if it still runs."""
        return self._current(tenant, await self._engine.responses.one(tenant, id))

    def _current(self, tenant: str, stored: StoredResponse) -> Value:
        run = self._runs.of(tenant, stored.id)
        return run.body if run else settled(dict(stored.body))

    async def _stop(self, tenant: str, id: str) -> None:
        """End its run, if it has one."""
        run = self._runs.of(tenant, id)
        if run and not run.is_done:
            await run.cancel()
