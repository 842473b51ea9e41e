"""An archive without state is computed again: as one conversation with its turns and snapshots, not as a request, wholly or not at all."""

from __future__ import annotations

import asyncio
import io
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.engine.engines import Rig, events, running
from tests.waiting import until

from forerun.decode.prefill import CHUNK_TOKENS
from forerun.engine.request_recorder import RequestLog
from forerun.errors import ForerunError
from forerun.request_log.file import LogFile
from forerun.serve.app import build
from forerun.serve.request_guard import ARCHIVE
from forerun.values import Done

LONG = [(13 * i + i // 7) % 6000 for i in range(3 * CHUNK_TOKENS)]


async def exported(folder: Path) -> bytes:
    """A conversation of three turns, without its state."""
    async with running(folder) as rig:
        for stop in (CHUNK_TOKENS, 2 * CHUNK_TOKENS, len(LONG)):
            await events(await rig.ask(LONG[:stop], session="mine"))
        await rig.engine.sessions.update("", "mine", name="a walk", is_pinned=None)
        return b"".join(await rig.engine.sessions.export("", "mine", with_state=False))


def counted(rig: Rig) -> list[str]:
    """The metrics of requests and tokens."""
    return [
        line
        for line in generate_latest(rig.engine.registry).decode().splitlines()
        if line.startswith(("forerun_requests", "forerun_prompt"))
    ]


def test_a_recomputed_import_is_one_conversation_and_no_request(tmp_path: Path) -> None:
    log = RequestLog(LogFile(tmp_path / "requests.jsonl", 1 << 20), "fake", with_content=True)

    async def scenario() -> None:
        archive = await exported(tmp_path / "one")
        async with running(tmp_path / "two", log=log) as rig:
            before = counted(rig)
            made = await rig.engine.sessions.load("", io.BytesIO(archive), id="theirs")
            assert (made.state, made.session.turns, made.session.name, made.session.state) == ("computed", 3, "a walk", "ssd")
            assert (counted(rig), (tmp_path / "requests.jsonl").read_text()) == (before, "")
            assert len(rig.gate.rows) <= len(LONG) // CHUNK_TOKENS + 2, "some of it was read more than once"
        async with running(tmp_path / "two") as rig:
            for stop in (len(LONG), 2 * CHUNK_TOKENS, CHUNK_TOKENS):
                done = (await events(await rig.ask([*LONG[:stop], 1, 2, 3], session="theirs")))[-1]
                assert isinstance(done, Done)
                assert (done.report.reused_tokens, done.report.session) == (stop, "theirs")

    asyncio.run(scenario())


def test_an_import_whose_client_disconnects_is_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        archive = await exported(tmp_path / "one")
        async with running(tmp_path / "two") as rig:
            rig.gate.hold(after=1)
            gone, sent = asyncio.Event(), [{"type": "http.request", "body": archive, "more_body": False}]

            async def receive() -> MutableMapping[str, Any]:
                if not sent:
                    await gone.wait()
                return sent.pop() if sent else {"type": "http.disconnect"}

            async def send(message: MutableMapping[str, Any]) -> None: ...

            app = build(rig.engine, keys={}, host="127.0.0.1")
            serving = asyncio.create_task(app(scope("/v1/forerun/sessions/import"), receive, send))
            await rig.gate.reached(2)
            request = rig.engine.worker._sequences[0].request
            assert not request.is_cancelled
            gone.set()
            await serving
            assert request.is_cancelled
            rig.gate.open()
            await until(lambda: rig.engine.worker.counts() == (0, 0))
            assert await rig.engine.sessions.all("", 10) == []
            assert len(rig.gate.rows) == 2

    asyncio.run(scenario())


def scope(path: str) -> dict[str, Any]:
    """A POST of an archive."""
    headers = [(b"host", b"127.0.0.1"), (b"content-type", ARCHIVE.encode())]
    fields = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": "POST", "headers": headers}
    return fields | {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1), "state": {}}


def test_a_cancelled_import_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        archive = await exported(tmp_path / "one")
        async with running(tmp_path / "two") as rig:
            rig.gate.hold(after=2)
            loading = asyncio.create_task(rig.engine.sessions.load("", io.BytesIO(archive), id="theirs"))
            await rig.gate.reached(3)
            request = rig.engine.worker._sequences[0].request
            request.cancel()
            rig.gate.open()
            with pytest.raises(ForerunError, match="the client disconnected"):
                await loading
            assert await rig.engine.sessions.all("", 10) == []
        async with running(tmp_path / "two") as rig:
            assert await rig.engine.sessions.all("", 10) == []

    asyncio.run(scenario())
