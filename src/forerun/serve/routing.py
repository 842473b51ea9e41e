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

    Its parameters are decoded. HEAD is allowed where GET is. The path may end in a slash, unless it `is_literal`.
    """

    def __init__(self, method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]], *, is_literal: bool = False) -> None:
        super().__init__(path, endpoint)
        self.methods = {"GET", "HEAD"} if method == "GET" else {method}
        self._is_literal = is_literal

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope["raw_path"].decode("ascii")
        match, child = super().matches({**scope, "path": path if self._is_literal else path.removesuffix("/")})
        return match, {**child, "path_params": {name: unquote(value) for name, value in child.get("path_params", {}).items()}}
