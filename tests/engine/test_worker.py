"""A defect near the MLX thread ends at most one request; if it ends the thread, everybody learns it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from tests.engine.engines import events, running

from forerun.engine import worker
from forerun.engine.batch import Batch
from forerun.engine.request import EndedRequest, Request
from forerun.errors import ForerunError
from forerun.values import Done

PROMPT = list(range(40))


def test_an_observer_that_fails_ends_no_request(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def broken(ended: EndedRequest) -> None:
        raise RecursionError("too deep")

    async def scenario() -> None:
        async with running() as rig:
            rig.engine.worker.observers = (broken, lambda ended: seen.append(ended.outcome))
            for _ in range(2):
                assert isinstance((await events(await rig.ask(PROMPT)))[-1], Done)
            assert rig.engine.failure == ""

    asyncio.run(scenario())
    assert seen == ["length", "length"]
    assert [r.message for r in caplog.records if r.exc_info] == ["a request's end could not be recorded"] * 2
    caplog.clear()


def test_a_thread_that_ends_fails_all_requests_and_health(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running() as rig:
            rig.gate.hold()
            runs = [await rig.ask(PROMPT), await rig.ask(PROMPT[:20])]
            monkeypatch.setattr(worker.Worker, "_log_draft_failure", lambda self, is_failing: 1 / 0)
            rig.gate.open()
            assert isinstance((await events(runs[0]))[-1], Done)
            with pytest.raises(ForerunError, match="the MLX thread ended: ZeroDivisionError"):
                await events(runs[1])
            assert "ZeroDivisionError" in rig.engine.failure
            health = rig.engine.health()
            assert (health.ready, health.status, rig.engine.failure in health.reasons) == (False, "degraded", True)
            with pytest.raises(ForerunError):
                await rig.ask(PROMPT)

    asyncio.run(scenario())
    assert [r.message for r in caplog.records if r.levelno == logging.CRITICAL] == ["the MLX thread ended"]
    caplog.clear()


def test_a_request_cancelled_while_it_is_started_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever counts the requests meanwhile must not take it from the queue: that ended the thread."""

    async def scenario() -> None:
        async with running() as rig:
            admit = Batch.admit

            def slowly(batch: Batch, request: Request) -> bool:
                request.cancel()
                rig.engine.health()
                return admit(batch, request)

            with monkeypatch.context() as patched:
                patched.setattr(Batch, "admit", slowly)
                with pytest.raises(ForerunError, match="the client disconnected"):
                    await events(await rig.ask(PROMPT))
            assert rig.engine.failure == ""
            assert isinstance((await events(await rig.ask(PROMPT)))[-1], Done)

    asyncio.run(scenario())


def test_a_scrape_asks_for_health_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as rig:
            stats, asked = rig.engine.model.bank.stats, 0
            health = stats.health

            def counted() -> object:
                nonlocal asked
                asked += 1
                return health()

            monkeypatch.setattr(stats, "health", counted)
            assert b"forerun_bank_ram_bytes" in generate_latest(rig.engine.registry)
            assert asked == 1

    asyncio.run(scenario())
