"""The OpenAPI document: the requests of the routes, from the schemas that validate them, and their errors.

Knows the dialects' schemas; knows no engine. Fields that a dialect accepts without using them are allowed everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from forerun import __version__
from forerun.serve import anthropic, openai_chat, openai_completions, openai_responses, session_routes
from forerun.serve.request_guard import ARCHIVE

REQUEST_SCHEMAS: Mapping[str, type[BaseModel]] = {
    "/v1/chat/completions": openai_chat.Request,
    "/v1/completions": openai_completions.Request,
    "/v1/messages": anthropic.Request,
    "/v1/messages/count_tokens": anthropic.Prompt,
    "/v1/responses": openai_responses.Request,
}
SESSION_CHANGES: Mapping[tuple[str, str], tuple[str, type[BaseModel] | None]] = {
    ("/v1/forerun/sessions/{id}", "patch"): ("name or pin a conversation", session_routes.Change),
    ("/v1/forerun/sessions/{id}", "delete"): ("remove a conversation", None),
    ("/v1/forerun/sessions/{id}/fork", "post"): ("fork a conversation", session_routes.Fork),
    ("/v1/forerun/sessions", "delete"): ("remove all conversations", None),
}
CANCEL, COMPACT = "/v1/responses/{id}/cancel", "/v1/responses/compact"
GET_ROUTES = {
    "/v1/responses/{id}": "a stored response",
    "/v1/responses/{id}/input_items": "the items that a stored response was made from",
    "/v1/forerun/sessions": "the stored conversations",
    "/v1/forerun/sessions/{id}": "one conversation",
    "/v1/models": "the served model",
    "/v1/models/{name}": "one model",
    "/health": "state of the server and its bank",
    "/health/live": "whether the process answers",
    "/health/ready": "whether new requests are accepted",
    "/openapi.json": "this document",
}
ERRORS = {
    400: "a field is malformed, not supported or does not fit; the error names it",
    401: "the API key is missing or wrong",
    403: "the server does not answer to this host name",
    408: "the body was too slow",
    413: "the body is too large",
    415: "the body is not JSON, or in a coding other than gzip, deflate and zstd",
    426: "a WebSocket was requested",
    429: "more requests than the key may send",
    507: "what is to be stored does not fit on disk",
    503: "too many requests wait; 529 on /v1/messages",
    529: "too many requests wait",
}
ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object", "required": ["message", "type"]}}}
OBJECT = {"type": "object"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
MISSING = {"404": {"description": "there is none of this name", "content": {"application/json": {"schema": ERROR}}}}
PATH_PARAMETER = re.compile(r"{(\w+)}")


@cache
def document() -> dict[str, Any]:
    """The document."""
    described = [*REQUEST_SCHEMAS.values(), *(schema for _, schema in SESSION_CHANGES.values() if schema)]
    schemas, defined = models_json_schema([(each, "validation") for each in described], ref_template="#/components/schemas/{model}")
    paths = {path: {"post": _post(path, schemas[(schema, "validation")])} for path, schema in REQUEST_SCHEMAS.items()}
    paths |= {path: {"get": _operation(path, what)} for path, what in GET_ROUTES.items()}
    for (path, method), (what, schema) in SESSION_CHANGES.items():
        body = {"requestBody": _body(schemas[(schema, "validation")])} if schema else {}
        paths.setdefault(path, {})[method] = _operation(path, what) | body
    _add_responses(paths)
    paths |= _archives()
    paths["/metrics"] = {"get": {"summary": "for Prometheus", "responses": {"200": _content("text/plain", {"type": "string"}, "metrics")}}}
    info = {"title": "forerun", "version": __version__, "description": "A local LLM server for coding agents."}
    key = {"bearer": {"type": "http", "scheme": "bearer"}, "header": {"type": "apiKey", "in": "header", "name": "x-api-key"}}
    components = {"schemas": defined["$defs"], "securitySchemes": key}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components, "security": [{}, {"bearer": []}, {"header": []}]}


def _add_responses(paths: dict[str, Any]) -> None:
    """Add the rest of the routes of stored responses."""
    one, items = "/v1/responses/{id}", "/v1/responses/{id}/input_items"
    paths["/v1/responses"]["post"]["responses"] |= MISSING  # previous_response_id
    paths[one]["delete"] = _operation(one, "remove a stored response")
    paths[one]["get"]["parameters"] += [_query("stream", {"enum": ["true", "false"]}), _query("starting_after", COUNT)]
    paths[one]["get"]["responses"]["200"]["content"]["text/event-stream"] = {"schema": OBJECT}
    numbers: dict[str, dict[str, Any]] = {
        "limit": COUNT | {"minimum": 1, "maximum": 100},
        "order": {"enum": ["asc", "desc"]},
        "after": {"type": "string"},
    }
    paths[items]["get"]["parameters"] += [_query(name, schema) for name, schema in numbers.items()]
    for path, what in ((CANCEL, "cancel a background response"), (COMPACT, "refused: there is no compaction")):
        paths[path] = {"post": _operation(path, what) | {"requestBody": _body(OBJECT) | {"required": False}}}


def _archives() -> dict[str, Any]:
    """The routes of archives, which are not JSON."""
    archive, root = {"type": "string", "format": "binary"}, session_routes.ROOT
    export, load = _operation(f"{root}/{{id}}/export", "export a conversation"), _operation(f"{root}/import", "import an archive")
    export["parameters"].append(_query("state", {"enum": ["true", "false"]}))
    export["responses"]["200"] = _content(ARCHIVE, archive, "the archive")
    load["parameters"].append(_query("id", {"type": "string", "minLength": 1, "maxLength": 200}))
    load["requestBody"] = {"required": True, "content": {ARCHIVE: {"schema": archive}}}
    return {f"{root}/{{id}}/export": {"get": export}, f"{root}/import": {"post": load}}


def _query(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _post(path: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    answer = _content("application/json", OBJECT, "the answer; with `stream`, as server-sent events")
    answer["content"]["text/event-stream"] = {"schema": OBJECT}  # of one event
    return {"summary": path.removeprefix("/v1/"), "requestBody": _body(schema), "responses": {"200": answer} | _errors()}


def _body(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _operation(path: str, what: str) -> dict[str, Any]:
    names = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in PATH_PARAMETER.findall(path)
    ]
    missing = MISSING if names else {}
    return {"summary": what, "parameters": names, "responses": {"200": _content("application/json", OBJECT, what)} | missing | _errors()}


def _errors() -> dict[str, Any]:
    return {str(status): _content("application/json", ERROR, reason) for status, reason in ERRORS.items()}


def _content(kind: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}
