"""Error responses, wherever a request fails: OpenAI's error object, or Anthropic's on the routes of that dialect.

Knows the exception tree; knows no route and no dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from forerun import errors

ANTHROPIC_ROUTES = "/v1/messages"
ROUTES_HINT = (
    "routes: POST /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses, GET /v1/models, /v1/responses/ID, "
    "/v1/forerun/sessions, /health, /metrics and /openapi.json"
)

# By class of error: HTTP status, `type` and `code` of the error object. The nearest base class counts.
KINDS: Mapping[type[Exception], tuple[int, str, str]] = {
    errors.BadRequestError: (400, "invalid_request_error", "bad_request"),
    errors.ContextLengthError: (400, "invalid_request_error", "context_length_exceeded"),
    errors.UnauthorisedError: (401, "invalid_request_error", "invalid_api_key"),
    errors.UnknownSessionError: (404, "invalid_request_error", "unknown_session"),
    errors.UnknownResponseError: (404, "invalid_request_error", "response_not_found"),
    errors.UnknownPreviousResponseError: (404, "invalid_request_error", "previous_response_not_found"),
    errors.RateLimitError: (429, "rate_limit_error", "rate_limit_exceeded"),
    errors.BusyError: (503, "server_error", "busy"),
    errors.RequestError: (400, "invalid_request_error", "bad_request"),
    errors.UnsupportedError: (501, "server_error", "unsupported"),
    errors.BankFullError: (507, "server_error", "bank_full"),
    errors.BankError: (500, "server_error", "bank"),
    errors.NumericsError: (500, "server_error", "numerics"),
    errors.OutOfMemoryError: (503, "server_error", "out_of_memory"),
    errors.ForerunError: (500, "server_error", "internal"),
}

# Anthropic's type of error by HTTP status; the others are invalid_request_error below 500 and api_error from 500.
ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
ANTHROPIC_STATUS: Mapping[int, int] = {503: 529}
# By the field to blame: the details that make Anthropic's library retry without the field.
ANTHROPIC_DETAILS: Mapping[str | None, Mapping[str, Any]] = {"thread": {"error_code": "thread_unsupported_request", "unsupported": []}}


@dataclass(frozen=True, slots=True)
class Problem:
    """A failed request. param: the field to blame, if any. hint: what the caller can do, may be empty."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    hint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error | ({"hint": self.hint} if self.hint else {})}

    def anthropic_body(self) -> dict[str, Any]:
        """Anthropic's error object. A hint can only go into its message."""
        status = ANTHROPIC_STATUS.get(self.status, self.status)
        kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        error: dict[str, Any] = {"type": kind, "message": f"{self.message} ({self.hint})" if self.hint else self.message}
        details = ANTHROPIC_DETAILS.get(self.param)
        return {"type": "error", "error": error | ({"details": details} if details else {})}

    def response(self, path: str) -> Response:
        """The error response, in the dialect of the route `path`."""
        if path.startswith(ANTHROPIC_ROUTES):
            return JSONResponse(self.anthropic_body(), ANTHROPIC_STATUS.get(self.status, self.status), dict(self.headers))
        return JSONResponse(self.body(), self.status, dict(self.headers))


def refused(status: int, code: str, message: str, hint: str, headers: Mapping[str, str] = MappingProxyType({})) -> Problem:
    """A request that the request guard refuses."""
    return Problem(status, "invalid_request_error", code, message, hint=hint, headers=headers)


def problem_of(error: Exception) -> Problem:
    """The error response for an exception. Of an error that is not forerun's own, the caller learns nothing but that the server failed."""
    if isinstance(error, HTTPException):
        return _routing(error)
    if not isinstance(error, errors.ForerunError):
        return Problem(500, "server_error", "internal", "the server failed; its log has the details")
    status, kind, code = next(KINDS[cls] for cls in type(error).__mro__ if cls in KINDS)
    param = error.param if isinstance(error, errors.RequestError) else None
    return Problem(status, kind, code, str(error), param, error.hint, _headers(error))


def _headers(error: errors.ForerunError) -> dict[str, str]:
    if isinstance(error, errors.BusyError | errors.RateLimitError):
        return {"Retry-After": str(error.retry_after_s)}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, errors.UnauthorisedError) else {}


def _routing(error: HTTPException) -> Problem:
    """No such route (404), or not with this method (405)."""
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    return Problem(error.status_code, "invalid_request_error", code, error.detail, hint=ROUTES_HINT, headers=error.headers or {})
