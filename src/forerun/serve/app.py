"""The HTTP application: routes, and nothing that is not about them. Dialects say what a body means, the engine does the work.

Knows FastAPI; knows no model, no terminal and no socket.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from forerun.engine.engine import Engine
from forerun.errors import BusyError, ForerunError
from forerun.log import request_id
from forerun.serve import (
    anthropic,
    anthropic_answer,
    openai_chat,
    openai_choices,
    openai_completions,
    openai_responses,
    openai_responses_answer,
    openapi,
    session_routes,
)
from forerun.serve.access import ID_HEADERS, Access
from forerun.serve.auth import tenant_of
from forerun.serve.dialect import A, Dialect
from forerun.serve.fields import parse_object
from forerun.serve.problems import problem_of
from forerun.serve.rate import Rate
from forerun.serve.request_guard import RequestGuard
from forerun.serve.series import begin
from forerun.serve.sse import EventStream, follow
from forerun.values import ModelInfo

CHAT = Dialect("chatcmpl-", openai_chat.parse, openai_choices.StreamedResponse, openai_choices.WholeResponse)
COMPLETIONS = Dialect("cmpl-", openai_completions.parse, openai_choices.StreamedResponse, openai_choices.WholeResponse)
MESSAGES = Dialect("msg_", anthropic.parse, anthropic_answer.StreamedResponse, anthropic_answer.WholeResponse)
RESPONSES = Dialect("resp_", openai_responses.parse, openai_responses_answer.StreamedResponse, openai_responses_answer.WholeResponse)


def build(
    engine: Engine, *, keys: Mapping[str, str], host: str, origins: Collection[str] = (), requests_per_minute: int | None = None
) -> FastAPI:
    """The application around an engine.

    keys: API keys by the name of their owner, {} for none. host: the address that is listened on. origins: web pages that may use the
    API. requests_per_minute: of each key, None for no limit.
    """
    app = FastAPI(title="forerun", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    rate = Rate(requests_per_minute)
    add_routes(app, Routes(engine, keys, rate))
    session_routes.add_routes(app, engine.sessions, keys, rate)
    for kind in (ForerunError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_middleware(RequestGuard, keys=keys, host=host, origins=origins)
    app.add_middleware(Access)
    return app


def add_routes(app: FastAPI, routes: Routes) -> None:
    """All but those of stored conversations."""
    app.add_api_route("/v1/chat/completions", routes.complete_chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", routes.complete, methods=["POST"], response_model=None)
    app.add_api_route("/v1/messages", routes.create_message, methods=["POST"], response_model=None)
    app.add_api_route("/v1/messages/count_tokens", routes.count_tokens, methods=["POST"], response_model=None)
    app.add_api_route("/v1/responses", routes.create_response, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", routes.list_models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/models/{name:path}", routes.show_model, methods=["GET"], response_model=None)
    app.add_api_route("/health", routes.show_health, methods=["GET"], response_model=None)
    app.add_api_route("/health/live", routes.show_live, methods=["GET"], response_model=None)
    app.add_api_route("/health/ready", routes.show_ready, methods=["GET"], response_model=None)
    app.add_api_route("/openapi.json", routes.show_routes, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", routes.show_metrics, methods=["GET"], response_model=None)


class Routes:
    """One method a route. Each asks for the key first."""

    def __init__(self, engine: Engine, keys: Mapping[str, str], rate: Rate) -> None:
        self._engine = engine
        self._keys = keys
        self._rate = rate

    async def complete_chat(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        return await self._answer(request, CHAT)

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions"""
        return await self._answer(request, COMPLETIONS)

    async def create_message(self, request: Request) -> Response:
        """POST /v1/messages"""
        return await self._answer(request, MESSAGES)

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens"""
        tenant = self._enter(request)
        prompt = anthropic.parse_count(parse_object(await request.body()))
        return JSONResponse({"input_tokens": await self._engine.count_tokens(prompt, tenant=tenant)})

    async def create_response(self, request: Request) -> Response:
        """POST /v1/responses"""
        return await self._answer(request, RESPONSES)

    async def show_routes(self, request: Request) -> Response:
        """GET /openapi.json"""
        tenant_of(request.headers, self._keys)
        return JSONResponse(openapi.document())

    def _enter(self, request: Request) -> str:
        """The tenant of a request that makes work. Raises UnauthorisedError, RateLimitError."""
        tenant = tenant_of(request.headers, self._keys)
        self._rate.take(tenant)
        return tenant

    async def _answer(self, request: Request, dialect: Dialect[A]) -> Response:
        tenant, info = self._enter(request), self._engine.info
        asked = dialect.parse(parse_object(await request.body()), info, id=f"{dialect.id_prefix}{request_id.get()}", tenant=tenant)
        run = await begin(self._engine, asked.jobs)
        created_unix_s = int(time.time())
        if asked.streams:
            return EventStream(run, dialect.streamed(asked, info, created_unix_s=created_unix_s))
        whole = dialect.whole(asked, info, created_unix_s=created_unix_s)
        async with aclosing(follow(run, request.receive)) as events:
            async for event in events:
                if event is not None:
                    whole.take(event)
        return JSONResponse(whole.body())

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models"""
        tenant_of(request.headers, self._keys)
        name, data = self._engine.info.name, [model_object(self._engine.info)]
        return JSONResponse({"object": "list", "data": data, "has_more": False, "first_id": name, "last_id": name})

    async def show_model(self, request: Request, name: str) -> Response:
        """GET /v1/models/NAME"""
        tenant_of(request.headers, self._keys)
        if name != self._engine.info.name:
            raise HTTPException(404, f"the model {name!r} is not served here, {self._engine.info.name!r} is")
        return JSONResponse(model_object(self._engine.info))

    async def show_health(self, request: Request) -> Response:
        """GET /health"""
        tenant_of(request.headers, self._keys)
        return JSONResponse(asdict(self._engine.health()) | {"model": model_object(self._engine.info)})

    async def show_live(self, request: Request) -> Response:
        """GET /health/live: 200 as long as the process answers at all."""
        tenant_of(request.headers, self._keys)
        return JSONResponse({"live": True})

    async def show_ready(self, request: Request) -> Response:
        """GET /health/ready: 200 if new requests are taken, 503 while the server stops."""
        tenant_of(request.headers, self._keys)
        if not self._engine.health().ready:
            raise BusyError("the server is stopping", retry_after_s=10)
        return JSONResponse({"ready": True})

    async def show_metrics(self, request: Request) -> Response:
        """GET /metrics"""
        tenant_of(request.headers, self._keys)
        return Response(generate_latest(self._engine.registry), media_type=CONTENT_TYPE_LATEST)


def model_object(info: ModelInfo) -> dict[str, Any]:
    """A model as OpenAI's and Anthropic's clients know it, and what people want to know of it besides."""
    known = {"id": info.name, "object": "model", "created": info.created_unix_s, "owned_by": "forerun"}
    known |= {"type": "model", "lifecycle": "active", "display_name": info.name}
    known |= {"created_at": datetime.fromtimestamp(info.created_unix_s, UTC).isoformat()}
    more = ("family", "device", "numerics", "blas", "context_tokens", "demo", "notes")
    return known | {name: getattr(info, name) for name in more}


async def _answer_error(request: Request, error: Exception) -> Response:
    problem, path = problem_of(error), request.url.path
    if isinstance(error, HTTPException):  # it knows neither: no such route, or not by this method
        problem = replace(problem, message=f"{request.method} {path}: {problem.message}")
    response = problem.response(path)
    response.headers.update(dict.fromkeys(ID_HEADERS, request_id.get()))  # what nobody expected is answered outside of all middleware
    return response


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
