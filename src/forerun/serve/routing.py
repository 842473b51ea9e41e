"""The class of all routes. Knows Starlette; knows no particular route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope


class RawPathRoute(Route):
    """A route of one method that matches the path before percent-decoding: the slash in `x%2Fexport` belongs to the id, not to the route.

    Its parameters are decoded.
    """

    def __init__(self, method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        super().__init__(path, endpoint)
        self.methods = {method}  # Starlette adds HEAD to GET

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches({**scope, "path": scope["raw_path"].decode("ascii")})
        return match, {**child, "path_params": {name: unquote(value) for name, value in child.get("path_params", {}).items()}}
