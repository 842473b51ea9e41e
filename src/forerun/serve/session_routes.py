"""Routes of the stored conversations: list, show, name, pin, fork, remove, export, import. Each key sees only its own.

Knows the engine's facade and JSON; knows no dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from io import BytesIO
from typing import Annotated, Literal
from urllib.parse import unquote

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import AfterValidator, ConfigDict, Field
from starlette.routing import Match
from starlette.types import Scope

from forerun.engine.engine import Sessions
from forerun.serve.auth import tenant_of
from forerun.serve.fields import Fields, SessionId, parse_object, validate
from forerun.serve.rate import Rate
from forerun.serve.request_guard import ARCHIVE

ROOT = "/v1/forerun/sessions"
LIST_LIMIT = 1000
Id = Annotated[str, AfterValidator(unquote)]


class RawPathRoute(APIRoute):
    """A route that matches the path before percent-decoding: in `x%2Fexport`, the slash belongs to the id and not to the route."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches({**scope, "path": scope["raw_path"].decode("ascii")})


class Change(Fields):
    """The new name and pin of a conversation. Left out: unchanged."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(default=None, max_length=200)
    pinned: bool | None = None


class Fork(Fields):
    """The new conversation's id, chosen by the bank if left out, and its name for people."""

    model_config = ConfigDict(extra="forbid")

    id: SessionId | None = None
    name: str = Field(default="", max_length=200)


class Export(Fields):
    """Whether the archive includes the state."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["true", "false"] = "false"


class Import(Fields):
    """The new conversation's id, the one in the archive if left out."""

    model_config = ConfigDict(extra="forbid")

    id: SessionId | None = None


def add_routes(app: FastAPI, sessions: Sessions, keys: Mapping[str, str], rate: Rate) -> None:
    """Add the routes to an application."""
    routes = Routes(sessions, keys, rate)
    add = partial(app.router.add_api_route, response_model=None, route_class_override=RawPathRoute)
    add(ROOT, routes.show_all, methods=["GET"])
    add(ROOT, routes.wipe, methods=["DELETE"])
    add(f"{ROOT}/import", routes.load, methods=["POST"])
    add(f"{ROOT}/{{id:path}}/export", routes.export, methods=["GET"])
    add(f"{ROOT}/{{id:path}}/fork", routes.fork, methods=["POST"])
    add(f"{ROOT}/{{id:path}}", routes.show_one, methods=["GET"])
    add(f"{ROOT}/{{id:path}}", routes.change, methods=["PATCH"])
    add(f"{ROOT}/{{id:path}}", routes.remove, methods=["DELETE"])


class Routes:
    """One method per route. Each checks the API key first."""

    def __init__(self, sessions: Sessions, keys: Mapping[str, str], rate: Rate) -> None:
        self._sessions, self._keys, self._rate = sessions, keys, rate

    async def show_all(self, request: Request) -> Response:
        """GET /v1/forerun/sessions"""
        sessions = await self._sessions.all(self._tenant(request), LIST_LIMIT + 1)
        return JSONResponse({"data": [asdict(session) for session in sessions[:LIST_LIMIT]], "has_more": len(sessions) > LIST_LIMIT})

    async def show_one(self, request: Request, id: Id) -> Response:
        """GET /v1/forerun/sessions/ID"""
        return JSONResponse(asdict(await self._sessions.one(self._tenant(request), id)))

    async def change(self, request: Request, id: Id) -> Response:
        """PATCH /v1/forerun/sessions/ID"""
        tenant, fields = self._tenant(request), validate(Change, parse_object(await request.body()))
        return JSONResponse(asdict(await self._sessions.update(tenant, id, name=fields.name, is_pinned=fields.pinned)))

    async def remove(self, request: Request, id: Id) -> Response:
        """DELETE /v1/forerun/sessions/ID"""
        await self._sessions.remove(self._tenant(request), id)
        return JSONResponse({"id": id, "deleted": True})

    async def fork(self, request: Request, id: Id) -> Response:
        """POST /v1/forerun/sessions/ID/fork"""
        tenant, fields = self._tenant(request), validate(Fork, parse_object(await request.body()))
        return JSONResponse(asdict(await self._sessions.fork(tenant, id, fork_id=fields.id, name=fields.name)))

    async def export(self, request: Request, id: Id) -> Response:
        """GET /v1/forerun/sessions/ID/export"""
        tenant, fields = self._tenant(request), validate(Export, dict(request.query_params))
        chunks = await self._sessions.export(tenant, id, with_state=fields.state == "true")
        return StreamingResponse(map(bytes, chunks), media_type=ARCHIVE)

    async def load(self, request: Request) -> Response:
        """POST /v1/forerun/sessions/import"""
        tenant, fields = self._tenant(request), validate(Import, dict(request.query_params))
        self._rate.take(tenant)  # it may need a prefill, as any prompt does
        return JSONResponse(asdict(await self._sessions.load(tenant, BytesIO(await request.body()), id=fields.id)))

    async def wipe(self, request: Request) -> Response:
        """DELETE /v1/forerun/sessions"""
        return JSONResponse({"deleted": await self._sessions.wipe(self._tenant(request))})

    def _tenant(self, request: Request) -> str:
        return tenant_of(request.headers, self._keys)
