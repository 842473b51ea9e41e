"""The conversations that a running server keeps, asked for over HTTP. Knows the routes of serve/session_routes.py; no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import quote

import httpx

from forerun.serve.client import CHANGE_TIMEOUT, bearer, check, plain_errors, request_json
from forerun.serve.request_guard import ARCHIVE
from forerun.values import ImportResult, SessionInfo

SESSIONS = "/v1/forerun/sessions"


@dataclass(frozen=True, slots=True)
class RemoteSessions:
    """The conversations that a running server keeps. key: the API key, "" for none. All raise ForerunError with the server's words."""

    url: str
    key: str

    def all(self) -> list[SessionInfo]:
        """Of the key's owner, the last used first."""
        with plain_errors(self.url):
            return [SessionInfo(**each) for each in request_json(self.url, "GET", SESSIONS, self.key)["data"]]

    def update(self, session: SessionInfo, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        """Call it so, pin it or not; None: as it was."""
        with plain_errors(self.url):
            return SessionInfo(**request_json(self.url, "PATCH", _path(session), self.key, json={"name": name, "pinned": is_pinned}))

    def fork(self, session: SessionInfo, *, fork_id: str | None, name: str) -> SessionInfo:
        """Let a second conversation begin as this one is now. fork_id None: it is given one."""
        with plain_errors(self.url):
            body = {"id": fork_id, "name": name}
            return SessionInfo(**request_json(self.url, "POST", f"{_path(session)}/fork", self.key, json=body))

    def export(self, session: SessionInfo, *, with_state: bool) -> Iterator[bytes]:
        """An archive of it."""
        url, state = f"{self.url}{_path(session)}/export", {"state": "true" if with_state else "false"}
        with (
            plain_errors(self.url),
            httpx.stream("GET", url, headers=bearer(self.key), params=state, timeout=CHANGE_TIMEOUT) as response,
        ):
            check(response)
            yield from response.iter_bytes()

    def load(self, archive: BinaryIO, *, id: str | None) -> ImportResult:
        """Keep what an archive holds, under its own id if None. Its state is taken if the server's key has signed it, else read anew."""
        headers, named = {**bearer(self.key), "Content-Type": ARCHIVE}, {"id": id} if id else {}
        with plain_errors(self.url):
            response = httpx.post(f"{self.url}{SESSIONS}/import", content=archive, headers=headers, params=named, timeout=CHANGE_TIMEOUT)
            check(response)
            told = response.json()
            return ImportResult(SessionInfo(**told["session"]), told["state"], told["reason"])

    def wipe(self) -> int:
        """Remove all that the key's owner has. Returns the number of conversations."""
        with plain_errors(self.url):
            return int(request_json(self.url, "DELETE", SESSIONS, self.key)["deleted"])

    def remove(self, session: SessionInfo) -> None:
        """Remove it, and what no other conversation needs."""
        with plain_errors(self.url):
            request_json(self.url, "DELETE", _path(session), self.key)


def _path(session: SessionInfo) -> str:
    return f"{SESSIONS}/{quote(session.id, safe='')}"
