"""A hub on loopback: the routes of the real one that a download uses, real files, and connections that break on request.

Source of the routes and headers: huggingface_hub 2.4 (`hf_api.py`, `file_download.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.waiting import LIMIT_S

REPO = "acme/tiny"


@dataclass
class Hub:
    """One repository. commits: by hash, files by name; branches: names of commits. cut_at: bytes after which a large file's connection
    breaks, once each, in this order; refuse: status for requests for the rest of a file; stall: where a broken
    connection stays open and silent until it is set; sizes: false sizes to report."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    cut_at: list[int] = field(default_factory=list)
    refuse: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    damaged: bool = False
    stall: threading.Event | None = None
    sent_bytes: int = 0
    ranges: list[str] = field(default_factory=list)
    tokens: dict[str, set[str]] = field(default_factory=lambda: {"hub": set(), "cdn": set()})
    url: str = ""

    @property
    def other_url(self) -> str:
        """Large files are on another host, as in reality: the library follows redirects to its own host only."""
        return self.url.replace("127.0.0.1", "localhost")

    def environ(self, home: Path) -> dict[str, str]:
        """The environment of a process that uses only this hub and this home."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "FORERUN_"))}
        caches = {"HF_ENDPOINT": self.url, "HF_HOME": str(home / "hf"), "XDG_CACHE_HOME": str(home / "cache")}
        return (
            clean | caches | {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*", "COLUMNS": "200", "XDG_CONFIG_HOME": str(home / "config")}
        )

    def command(self, *arguments: object) -> list[str]:
        """The command line of a forerun process."""
        return [sys.executable, "-m", "forerun.cli", *map(str, arguments)]

    def forerun(self, home: Path, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
        """The command, run to its end."""
        return subprocess.run(
            self.command(*arguments), env=self.environ(home) | environ, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub, answering."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""

    def do_HEAD(self) -> None:
        self._resolve(send=False)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/cdn/"):
            self._large(path.removeprefix("/cdn/"))
        elif path.startswith(f"/api/models/{REPO}/revision/"):
            self._refs(path)
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            commit = path.split("/tree/")[1].rstrip("/")
            self._json([self._described(name, content) for name, content in self.hub.commits[commit].items()])
        elif path.startswith("/api/models/acme/gated/"):
            self._error(403, "GatedRepo")
        else:
            self._resolve(send=True)

    def do_POST(self) -> None:
        requested = self.rfile.read(int(self.headers["Content-Length"])).decode()
        names = [unquote(pair.removeprefix("paths=")) for pair in requested.split("&") if pair.startswith("paths=")]
        files = self.hub.commits[self.path.split("/paths-info/")[1]]
        self._json([self._described(name, files[name]) for name in names])

    def _refs(self, path: str) -> None:
        revision = unquote(path.split("/revision/")[1])
        commit = self.hub.branches.get(revision, revision)
        if commit not in self.hub.commits:
            self._error(404, "RevisionNotFound")
        else:
            self._json({"id": REPO, "sha": commit, "siblings": [], "private": False, "tags": [], "downloads": 0, "likes": 0})

    def _resolve(self, *, send: bool) -> None:
        self.hub.tokens["hub"].add(self.headers.get("Authorization", ""))
        repo, found, rest = self.path.lstrip("/").partition("/resolve/")
        if repo != REPO or not found:
            return self._error(404, "RepoNotFound")
        commit, _, name = rest.partition("/")
        content = self.hub.commits[commit].get(unquote(name))
        if content is None:
            return self._error(404, "EntryNotFound")
        digest, size = hashlib.sha256(content).hexdigest(), self.hub.sizes.get(name, len(content))
        if not is_large(name):
            body = content if send else b""
            return self._respond(200, body, {"X-Repo-Commit": commit, "ETag": f'"{git_hash(content)}"', "Content-Length": str(size)})
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(size), "Location": f"{self.hub.other_url}/cdn/{digest}?signed"}
        return self._respond(302, b"", linked | {"X-Repo-Commit": commit, "Content-Length": "0"})

    def _large(self, digest: str) -> None:
        files = (content for commit in self.hub.commits.values() for content in commit.values())
        content = next(content for content in files if hashlib.sha256(content).hexdigest() == digest)
        self.hub.tokens["cdn"].add(self.headers.get("Authorization", ""))
        requested = self.headers.get("Range", "")
        self.hub.ranges.append(requested)
        start = int(requested.removeprefix("bytes=").rstrip("-")) if requested else 0
        if requested and self.hub.refuse:
            return self._error(self.hub.refuse, "")
        body = bytes(len(content) - start) if self.hub.damaged else content[start:]
        length = {"Content-Length": str(len(body)), "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        stop = self.hub.cut_at.pop(0) - start if self.hub.cut_at and self.hub.cut_at[0] < len(content) else len(body)
        self.hub.sent_bytes += len(body[:stop])
        self._respond(206 if start else 200, body[:stop], length)
        if self.hub.stall and stop < len(body):
            self.hub.stall.wait(60)
        self.close_connection = stop < len(body)
        return None

    def _described(self, name: str, content: bytes) -> dict[str, Any]:
        size = self.hub.sizes.get(name, len(content))
        large = {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 130}} if is_large(name) else {}
        return {"type": "file", "path": name, "size": size, "oid": git_hash(content)} | large

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self._respond(200, body, {"Content-Type": "application/json", "Content-Length": str(len(body))})

    def _error(self, status: int, code: str) -> None:
        self._respond(status, b"", {"X-Error-Code": code, "Content-Length": "0"})

    def _respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
