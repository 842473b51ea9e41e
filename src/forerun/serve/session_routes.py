"""Routes of the stored conversations: list, show, name, pin, fork, remove, export, import. Each key sees only its own.

Knows the engine's facade and JSON; knows no dialect.
"""

from __future__ import annotations

from dataclasses import asdict
from io import BytesIO
from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from forerun.engine.engine import Sessions
from forerun.serve.fields import SessionId, StrictFields, parse_object, validate
from forerun.serve.rate import Rate
from forerun.serve.request_guard import ARCHIVE, tenant_of_request
from forerun.serve.routing import RawPathRoute
from forerun.serve.sse import while_connected

ROOT = "/v1/forerun/sessions"
LIST_LIMIT = 1000


class Change(StrictFields):
    """The new name and pin of a conversation. Left out: unchanged."""

    name: str | None = Field(default=None, max_length=200)
    pinned: bool | None = None


class Fork(StrictFields):
    """The new conversation's id, chosen by the bank if left out, and its name for people."""

    id: SessionId | None = None
    name: str = Field(default="", max_length=200)


class Export(StrictFields):
    """Whether the archive includes the state."""

    state: Literal["true", "false"] = "false"


class Import(StrictFields):
    """The new conversation's id, the one in the archive if left out."""

    id: SessionId | None = None


class Routes:
    """One method per route. The request guard has checked the API key before."""

    def __init__(self, sessions: Sessions, rate: Rate) -> None:
        self._sessions, self._rate = sessions, rate

    def all(self) -> list[RawPathRoute]:
        """All of these routes."""
        one = f"{ROOT}/{{id:path}}"
        return [
            RawPathRoute("GET", ROOT, self.show_all),
            RawPathRoute("DELETE", ROOT, self.wipe, is_literal=True),  # a slash after it would be that of an empty id
            RawPathRoute("POST", f"{ROOT}/import", self.load),
            RawPathRoute("GET", f"{one}/export", self.export),
            RawPathRoute("POST", f"{one}/fork", self.fork),
            RawPathRoute("GET", one, self.show_one),
            RawPathRoute("PATCH", one, self.change),
            RawPathRoute("DELETE", one, self.remove),
        ]

    async def show_all(self, request: Request) -> Response:
        """GET /v1/forerun/sessions"""
        sessions = await self._sessions.all(tenant_of_request(request), LIST_LIMIT + 1)
        return JSONResponse({"data": [asdict(session) for session in sessions[:LIST_LIMIT]], "has_more": len(sessions) > LIST_LIMIT})

    async def show_one(self, request: Request) -> Response:
        """GET /v1/forerun/sessions/ID"""
        return JSONResponse(asdict(await self._sessions.one(tenant_of_request(request), request.path_params["id"])))

    async def change(self, request: Request) -> Response:
        """PATCH /v1/forerun/sessions/ID"""
        tenant, fields = tenant_of_request(request), validate(Change, parse_object(await request.body()))
        return JSONResponse(
            asdict(await self._sessions.update(tenant, request.path_params["id"], name=fields.name, is_pinned=fields.pinned))
        )

    async def remove(self, request: Request) -> Response:
        """DELETE /v1/forerun/sessions/ID"""
        tenant, id = tenant_of_request(request), request.path_params["id"]
        await self._sessions.remove(tenant, id)
        return JSONResponse({"id": id, "deleted": True})

    async def fork(self, request: Request) -> Response:
        """POST /v1/forerun/sessions/ID/fork"""
        tenant, fields = tenant_of_request(request), validate(Fork, parse_object(await request.body()))
        return JSONResponse(asdict(await self._sessions.fork(tenant, request.path_params["id"], fork_id=fields.id, name=fields.name)))

    async def export(self, request: Request) -> Response:
        """GET /v1/forerun/sessions/ID/export"""
        tenant, fields = tenant_of_request(request), validate(Export, dict(request.query_params))
        chunks = await self._sessions.export(tenant, request.path_params["id"], with_state=fields.state == "true")
        return StreamingResponse(map(bytes, chunks), media_type=ARCHIVE)

    async def load(self, request: Request) -> Response:
        """POST /v1/forerun/sessions/import"""
        tenant, fields = tenant_of_request(request), validate(Import, dict(request.query_params))
        self._rate.take(tenant)  # it may need a prefill, as any prompt does
        loading = self._sessions.load(tenant, BytesIO(await request.body()), id=fields.id)
        return JSONResponse(asdict(await while_connected(loading, request.receive)))

    async def wipe(self, request: Request) -> Response:
        """DELETE /v1/forerun/sessions"""
        return JSONResponse({"deleted": await self._sessions.wipe(tenant_of_request(request))})
