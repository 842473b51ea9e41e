"""One file over unreliable connections."""

from __future__ import annotations

import fcntl
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

import pytest

from forerun.errors import ForerunError
from forerun.hub import fetch as fetch_module
from forerun.hub.fetch import Source, fetch, part_of

CONTENT = random.Random(1).randbytes(200_000)
# What a server does with a request for the bytes from `start`: status, and the bytes that it sends before it closes.
Answer = tuple[int, Callable[[int], bytes]]
ALL: Answer = 206, lambda start: CONTENT[start:]
HALF: Answer = 206, lambda start: CONTENT[start : start + 100_000]
NOTHING: Answer = 206, lambda start: b""
BUSY: Answer = 503, lambda start: b""
FROM_THE_START: Answer = 200, lambda start: CONTENT


class Handler(BaseHTTPRequestHandler):
    answers: list[Answer]

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""

    def do_GET(self) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        status, body = self.answers.pop(0)
        self.send_response(200 if status == 206 and not start else status)
        self.send_header("Content-Length", str(len(CONTENT) - (start if status == 206 else 0)))
        self.end_headers()
        self.wfile.write(body(start))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.setattr(fetch_module.time, "sleep", lambda seconds: None)
    Handler.answers = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield Source(f"http://127.0.0.1:{server.server_port}/x", {}, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    "answers",
    [[ALL], [HALF, ALL], [HALF, HALF], [NOTHING, BUSY, ALL], [HALF, BUSY, NOTHING, BUSY, NOTHING, HALF], [HALF, FROM_THE_START]],
    ids=["whole", "half", "halves", "busy", "patience", "from the start"],
)
def test_the_file_is_complete(source: Source, tmp_path: Path, answers: list[Answer]) -> None:
    Handler.answers, counted = list(answers), list[int]()
    fetch(source, tmp_path / "x", counted.append)
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert (counted[-1], Handler.answers) == (len(CONTENT), [])
    assert not part_of(tmp_path / "x").exists()


def test_it_gives_up_after_attempts_without_a_byte(source: Source, tmp_path: Path) -> None:
    Handler.answers = [HALF, *[BUSY] * fetch_module.ATTEMPTS]
    with pytest.raises(ForerunError, match="100,000 of 200,000 bytes: HTTP 503"):
        fetch(source, tmp_path / "x", lambda num: None)
    assert part_of(tmp_path / "x").read_bytes() == CONTENT[:100_000]
    assert Handler.answers == []


@pytest.mark.parametrize("begun", [CONTENT[:-1] + b"x", b"x", CONTENT + b"x"], ids=["last byte", "first byte", "too long"])
def test_a_partial_file_with_other_content(source: Source, tmp_path: Path, begun: bytes) -> None:
    part_of(tmp_path / "x").write_bytes(begun)
    Handler.answers = [ALL]
    with pytest.raises(ForerunError, match="does not match the hub's checksum"):
        fetch(source, tmp_path / "x", lambda num: None)
    assert list(tmp_path.iterdir()) == []


def test_two_at_a_time(source: Source, tmp_path: Path) -> None:
    def second(num: int) -> None:
        with pytest.raises(ForerunError, match="is being fetched by another process"):
            fetch(source, tmp_path / "x", lambda num: None)

    Handler.answers = [ALL]
    fetch(source, tmp_path / "x", second)
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_another_process_finishes_between_open_and_lock(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, lock = tmp_path / "x", fcntl.flock

    def lock_too_late(stream: BinaryIO, operation: int) -> None:
        if not target.exists():
            part_of(target).replace(target)
        lock(stream, operation)

    part_of(target).write_bytes(CONTENT)
    monkeypatch.setattr(fetch_module.fcntl, "flock", lock_too_late)
    Handler.answers = [ALL]
    fetch(source, target, lambda num: None)
    assert target.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_gets_its_name_under_the_lock(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, replace = tmp_path / "x", Path.replace

    def replace_while_locked(part: Path, name: Path) -> Path:
        assert part.read_bytes() == CONTENT
        with part.open("rb") as stream, pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return replace(part, name)

    monkeypatch.setattr(Path, "replace", replace_while_locked)
    Handler.answers = [ALL]
    fetch(source, target, lambda num: None)
    assert target.read_bytes() == CONTENT
