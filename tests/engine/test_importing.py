"""An archive without state is computed again: as one conversation with its turns and snapshots, not as a request, wholly or not at all."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.engine.engines import Rig, events, running
from tests.waiting import LIMIT_S, until

from forerun.bank.eviction import EvictingDisk
from forerun.bank.tier.index import RecordLabel
from forerun.decode.prefill import CHUNK_TOKENS
from forerun.engine.request import Request
from forerun.engine.request_recorder import RequestLog
from forerun.errors import ForerunError
from forerun.request_log.entry import decode
from forerun.request_log.file import LogFile
from forerun.serve.app import build
from forerun.serve.request_guard import ARCHIVE
from forerun.state.record import Record
from forerun.values import Done

LONG = [(13 * i + i // 7) % 6000 for i in range(3 * CHUNK_TOKENS)]


async def exported(folder: Path, *, with_state: bool = False) -> bytes:
    """A conversation of three turns."""
    async with running(folder) as rig:
        for stop in (CHUNK_TOKENS, 2 * CHUNK_TOKENS, len(LONG)):
            await events(await rig.ask(LONG[:stop], session="mine"))
        await rig.engine.sessions.update("", "mine", name="a walk", is_pinned=None)
        return b"".join(await rig.engine.sessions.export("", "mine", with_state=with_state))


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


class HeldPuts:
    """Holds the disk before every record that is put; num: of those so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num, self.may_put, put = 0, threading.Event(), EvictingDisk.put

        def held(evicting: EvictingDisk, record: Record, label: RecordLabel) -> None:
            self.num += 1
            assert self.may_put.wait(LIMIT_S)
            put(evicting, record, label)

        monkeypatch.setattr(EvictingDisk, "put", held)


def test_requests_are_served_while_an_import_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        archive = await exported(tmp_path / "one", with_state=True)
        async with running(tmp_path / "two") as rig:
            puts = HeldPuts(monkeypatch)
            loading = asyncio.create_task(rig.engine.sessions.load("", io.BytesIO(archive), id="theirs"))
            await until(lambda: puts.num)
            assert isinstance((await events(await rig.ask(LONG[:40])))[-1], Done)
            assert not loading.done()
            puts.may_put.set()
            assert (await loading).state == "imported"
            done = (await events(await rig.ask([*LONG, 1, 2, 3], session="theirs")))[-1]
            assert isinstance(done, Done)
            assert done.report.reused_tokens >= len(LONG)

    asyncio.run(scenario())


def test_an_import_with_state_ends_at_the_next_record_once_its_client_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        archive = await exported(tmp_path / "one", with_state=True)
        async with running(tmp_path / "two") as rig:
            puts = HeldPuts(monkeypatch)
            loading = asyncio.create_task(rig.engine.sessions.load("", io.BytesIO(archive), id="theirs"))
            await until(lambda: puts.num)
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            puts.may_put.set()
            assert await rig.engine.sessions.wipe("") == 0  # after the import: one change at a time
            assert puts.num == 1
            assert rig.engine.model.bank._disk
            assert rig.engine.model.bank._disk.index.inventory() == []

    asyncio.run(scenario())


def test_requests_are_served_while_a_change_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as rig:
            puts = HeldPuts(monkeypatch)
            await events(await rig.ask(LONG[:600], session="mine"))
            named = asyncio.create_task(rig.engine.sessions.update("", "mine", name="a walk", is_pinned=None))
            await until(lambda: puts.num)
            assert isinstance((await events(await rig.ask(LONG[:40])))[-1], Done)
            assert not named.done()
            puts.may_put.set()
            assert (await named).name == "a walk"

    asyncio.run(scenario())


def test_a_request_whose_conversation_is_removed_meanwhile_is_served_and_not_stored(tmp_path: Path) -> None:
    log = RequestLog(LogFile(tmp_path / "requests.jsonl", 1 << 20), "fake", with_content=True)

    async def scenario() -> None:
        async with running(tmp_path / "bank", log=log) as rig:
            rig.gate.hold(after=1)
            run = await rig.ask(LONG, session="mine")
            await rig.gate.reached(2)
            removal = asyncio.create_task(rig.engine.sessions.remove("", "mine"))
            assert isinstance(run, Request)
            await until(lambda: run.running.is_removed)
            rig.gate.open()
            assert isinstance((await events(run))[-1], Done)
            await removal
            assert await rig.engine.sessions.all("", 10) == []
            assert decode((tmp_path / "requests.jsonl").read_text()).content is None
            done = (await events(await rig.ask(LONG, session="mine")))[-1]
            assert isinstance(done, Done)
            assert done.report.reused_tokens == 0

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
