"""The HTTP application: the routes. Dialects define what a body means, the engine does the work.

Knows Starlette; knows no model, no terminal and no socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from forerun.engine.engine import Engine
from forerun.errors import BusyError, ForerunError
from forerun.log import request_id
from forerun.serve import (
    anthropic,
    anthropic_answer,
    openai_chat,
    openai_choices,
    openai_completions,
    openapi,
    response_routes,
    session_routes,
)
from forerun.serve.access import ID_HEADERS, Access, agent, family
from forerun.serve.dialect import A, Dialect
from forerun.serve.fields import parse_body
from forerun.serve.problems import problem_of, refused
from forerun.serve.rate import Rate
from forerun.serve.request_guard import RequestGuard, tenant_of_request
from forerun.serve.respond import respond
from forerun.serve.routing import RawPathRoute
from forerun.serve.sequential_run import start
from forerun.values import ModelInfo

CHAT = Dialect("chatcmpl-", openai_chat.parse, openai_choices.StreamedResponse, openai_choices.WholeResponse)
COMPLETIONS = Dialect("cmpl-", openai_completions.parse, openai_choices.StreamedResponse, openai_choices.WholeResponse)
MESSAGES = Dialect("msg_", anthropic.parse, anthropic_answer.StreamedResponse, anthropic_answer.WholeResponse)

UPGRADE = {"Upgrade": "HTTP/1.1", "Connection": "upgrade"}
NO_WEBSOCKET = refused(426, "upgrade_required", "there are no WebSockets here", "send it as POST over HTTP/1.1", UPGRADE)


def build(
    engine: Engine,
    *,
    keys: Mapping[str, str],
    host: str,
    allowed_hosts: Collection[str] = (),
    origins: Collection[str] = (),
    requests_per_minute: int | None = None,
) -> Starlette:
    """The application around an engine.

    keys: API keys by owner, {} for none. host: the address that the server listens on. allowed_hosts: further names of it. origins: web
    pages that may use the API. requests_per_minute: per key, None for no limit.
    """
    rate = Rate(requests_per_minute)
    own, responses, sessions = Routes(engine, rate), response_routes.Routes(engine, rate), session_routes.Routes(engine.sessions, rate)
    app = Starlette(routes=[*own.all(), *responses.all(), *sessions.all()])
    app.router.redirect_slashes = False
    for kind in (ForerunError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(ClientDisconnect, _answer_gone_client)
    app.add_middleware(RequestGuard, keys=keys, host=host, allowed_hosts=allowed_hosts, origins=origins)
    app.add_middleware(Access)
    return app


class Routes:
    """One method per route. The request guard has checked the API key before."""

    def __init__(self, engine: Engine, rate: Rate) -> None:
        self._engine, self._rate = engine, rate

    def all(self) -> list[RawPathRoute]:
        """All routes but those of responses and of stored conversations."""
        return [
            RawPathRoute("POST", "/v1/chat/completions", partial(self._answer, dialect=CHAT)),
            RawPathRoute("POST", "/v1/completions", partial(self._answer, dialect=COMPLETIONS)),
            RawPathRoute("POST", "/v1/messages", partial(self._answer, dialect=MESSAGES)),
            RawPathRoute("POST", "/v1/messages/count_tokens", self.count_tokens),
            RawPathRoute("GET", "/v1/models", self.list_models),
            RawPathRoute("GET", "/v1/models/{name:path}", self.show_model),
            RawPathRoute("GET", "/health", self.show_health),
            RawPathRoute("GET", "/health/live", self.show_live),
            RawPathRoute("GET", "/health/ready", self.show_ready),
            RawPathRoute("GET", "/openapi.json", self.show_routes),
            RawPathRoute("GET", "/metrics", self.show_metrics),
        ]

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens"""
        tenant = self._enter(request)
        prompt = await parse_body(await request.body(), anthropic.parse_count)
        return JSONResponse({"input_tokens": await self._engine.count_tokens(prompt, tenant=tenant)})

    async def show_routes(self, request: Request) -> Response:
        """GET /openapi.json"""
        return JSONResponse(openapi.document())

    def _enter(self, request: Request) -> str:
        """The tenant of a request that needs the model. Raises RateLimitError."""
        tenant = tenant_of_request(request)
        self._rate.take(tenant)
        return tenant

    async def _answer(self, request: Request, dialect: Dialect[A]) -> Response:
        tenant, info = self._enter(request), self._engine.info
        parse = partial(dialect.parse, info=info, id=f"{dialect.id_prefix}{request_id.get()}", tenant=tenant)
        parsed = await parse_body(await request.body(), parse)
        client = family(request.headers.get("user-agent", ""))
        run = await start(self._engine, [replace(job, client=client, agent=agent(request.headers)) for job in parsed.jobs])
        return await respond(request, run, parsed, info, dialect, int(time.time()))

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models"""
        name, data = self._engine.info.name, [model_object(self._engine.info)]
        # Codex wants this list. Its entries need what only Codex knows, such as its instructions; an empty list leaves its own in force.
        codex: dict[str, Any] = {"models": []} if "client_version" in request.query_params else {}
        return JSONResponse({"object": "list", "data": data, "has_more": False, "first_id": name, "last_id": name} | codex)

    async def show_model(self, request: Request) -> Response:
        """GET /v1/models/NAME: the served model, whatever the name, as in requests."""
        model, name = model_object(self._engine.info), request.path_params["name"]
        other = () if name == model["id"] else (f"requests for {name!r} are served by this model",)
        return JSONResponse(model | {"notes": (*model["notes"], *other)})

    async def show_health(self, request: Request) -> Response:
        """GET /health"""
        health = await asyncio.to_thread(self._engine.health)
        return JSONResponse(asdict(health) | {"model": model_object(self._engine.info)})

    async def show_live(self, request: Request) -> Response:
        """GET /health/live: 200 as long as the process answers and its worker lives, else 503."""
        if self._engine.failure:
            raise BusyError(self._engine.failure, retry_after_s=10)
        return JSONResponse({"live": True})

    async def show_ready(self, request: Request) -> Response:
        """GET /health/ready: 200 if new requests are accepted, 503 while the server stops."""
        if not (await asyncio.to_thread(self._engine.health)).ready:
            raise BusyError("the server is stopping", retry_after_s=10)
        return JSONResponse({"ready": True})

    async def show_metrics(self, request: Request) -> Response:
        """GET /metrics"""
        page = await asyncio.to_thread(generate_latest, self._engine.registry)
        return Response(page, media_type=CONTENT_TYPE_LATEST)


def model_object(info: ModelInfo) -> dict[str, Any]:
    """A model in the fields of OpenAI's and Anthropic's APIs, and further facts for people."""
    fields = {"id": info.name, "object": "model", "created": info.created_unix_s, "owned_by": "forerun"}
    fields |= {"type": "model", "lifecycle": "active", "display_name": info.name}
    fields |= {"created_at": datetime.fromtimestamp(info.created_unix_s, UTC).isoformat()}
    more = ("family", "device", "numerics", "kernels", "context_tokens", "demo", "notes")
    return fields | {name: getattr(info, name) for name in more}


async def _answer_error(request: Request, error: Exception) -> Response:
    problem, path = problem_of(error), request.url.path
    if isinstance(error, HTTPException) and "websocket" in request.headers.get("upgrade", "").lower():
        problem = NO_WEBSOCKET  # agents that try one first resume over HTTP at once
    elif isinstance(error, HTTPException):  # its message lacks both: no such route, or not with this method
        problem = replace(problem, message=f"{request.method} {path}: {problem.message}")
    response = problem.response(path)
    response.headers.update(dict.fromkeys(ID_HEADERS, request_id.get()))  # an unexpected error is answered outside all middleware
    return response


async def _answer_gone_client(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
