"""The stored conversations of a running server, over HTTP. Knows the routes of serve/session_routes.py; no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

from forerun.serve.client import CHANGE_TIMEOUT, bearer, check, plain_errors, request_json, streamed
from forerun.serve.request_guard import ARCHIVE
from forerun.values import ImportResult, SessionInfo

T = TypeVar("T")
ROOT = "/v1/forerun/sessions"


@dataclass(frozen=True, slots=True)
class RemoteSessions:
    """`Sessions` of a running server, for a command: its coroutines block. key: the API key, "" for none; the server takes its owner for
    the tenant, whichever is given. All raise ForerunError with the server's message.
    """

    url: str
    key: str

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        return self._request(lambda body: [SessionInfo(**each) for each in body["data"]], "GET", ROOT)[:limit]

    async def one(self, tenant: str, id: str) -> SessionInfo:
        return self._request(_info, "GET", _path(id))

    async def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        return self._request(_info, "PATCH", _path(id), json={"name": name, "pinned": is_pinned})

    async def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        return self._request(_info, "POST", f"{_path(id)}/fork", json={"id": fork_id, "name": name})

    async def export(self, tenant: str, id: str, *, with_state: bool) -> Iterator[bytes | memoryview]:
        return self._export(f"{self.url}{_path(id)}/export", {"state": "true" if with_state else "false"})

    async def load(self, tenant: str, archive: BinaryIO, *, id: str | None) -> ImportResult:
        named = {"id": id} if id else {}
        return self._request(_result, "POST", f"{ROOT}/import", content=archive, headers={"Content-Type": ARCHIVE}, params=named)

    async def wipe(self, tenant: str) -> int:
        return self._request(lambda body: int(body["deleted"]), "DELETE", ROOT)

    async def remove(self, tenant: str, id: str) -> None:
        self._request(bool, "DELETE", _path(id))

    def _request(self, parse: Callable[[dict[str, Any]], T], method: str, path: str, **options: Any) -> T:
        with plain_errors(self.url):
            return parse(request_json(self.url, method, path, self.key, **options))

    def _export(self, url: str, state: dict[str, str]) -> Iterator[bytes]:
        with plain_errors(self.url), streamed("GET", url, headers=bearer(self.key), params=state, timeout=CHANGE_TIMEOUT) as response:
            check(response)
            yield from response.iter_bytes()


def _info(body: dict[str, Any]) -> SessionInfo:
    return SessionInfo(**body)


def _result(body: dict[str, Any]) -> ImportResult:
    return ImportResult(SessionInfo(**body["session"]), body["state"], body["reason"])


def _path(id: str) -> str:
    return f"{ROOT}/{quote(id, safe='')}"
