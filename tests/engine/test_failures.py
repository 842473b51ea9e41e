"""Failures inside a request: memory, non-finite numbers, a full disk. The engine continues, and stored state remains."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from prometheus_client import generate_latest
from tests.engine.engines import Rig, events, running
from tests.waiting import until

from forerun.bank.tier.index import Index
from forerun.engine.assemble import gauges_of
from forerun.errors import BankError, ForerunError, NumericsError, OutOfMemoryError
from forerun.values import Done

PROMPT = [(11 * i + i // 3) % 6000 for i in range(40)]
ALLOCATORS = [
    MemoryError("Unable to allocate 1.00 PiB for an array"),
    RuntimeError("[malloc] Unable to allocate 4096 bytes."),
    RuntimeError("[metal::malloc] Attempting to allocate 8192 bytes which is greater than the maximum allowed buffer size of 4096 bytes."),
    RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
]


def no_memory(error: Exception) -> Callable[[Rig], None]:
    return lambda rig: rig.gate.errors.append(error)


def no_numbers(rig: Rig) -> None:
    head = rig.family.head

    def broken_head(hidden: mx.array) -> mx.array:
        rig.family.head = head  # type: ignore[method-assign]
        return mx.full((hidden.shape[0], rig.family.vocab), mx.nan)

    rig.family.head = broken_head  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fail", "kind", "message"),
    [
        *((no_memory(error), OutOfMemoryError, str(error)[:20]) for error in ALLOCATORS),
        (no_numbers, NumericsError, "not numbers"),
    ],
    ids=["numpy", "allocator", "metal", "command buffer", "logits"],
)
def test_a_failure_is_named_and_ends_one_request(
    fail: Callable[[Rig], None], kind: type[ForerunError], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            await events(await rig.ask(PROMPT))
            fail(rig)
            with pytest.raises(kind) as caught:
                await events(await rig.ask([*PROMPT, 5]))
            assert message in str(caught.value)
            assert caught.value.hint
            done = (await events(await rig.ask([*PROMPT, 5])))[-1]
            assert isinstance(done, Done)
            assert done.report.reused_tokens > 0, "what was stored before is lost"

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())


def test_a_failure_that_cannot_be_noted_ends_no_other_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: object) -> None:
        raise BankError("no memory for a note")

    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            no_numbers(rig)
            monkeypatch.setattr(Index, "note_lost", fails)
            with pytest.raises(NumericsError):
                await events(await rig.ask(PROMPT))
            assert isinstance((await events(await rig.ask(PROMPT)))[-1], Done)

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())


def test_a_full_disk_ends_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(file: int, chunk: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            bank = rig.engine.worker.model().bank
            with monkeypatch.context() as patched:
                patched.setattr(os, "write", full)
                first = (await events(await rig.ask(PROMPT)))[-1]
                await until(lambda: bank.stats.skipped.get("no disk capacity: disk"))
                assert gauges_of(bank)["bank_unwritten_records"][1]() == sum(bank.stats.skipped.values()) > 0
            again = (await events(await rig.ask(PROMPT)))[-1]
            assert isinstance(first, Done)
            assert isinstance(again, Done)
            assert (again.report.source, again.report.computed_tokens) == ("ram", 0)

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())


def test_an_index_that_fails_is_a_reason_and_no_error_of_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            await events(await rig.ask(PROMPT))
            bank = rig.engine.worker.model().bank
            await until(lambda: rig.engine.health().bank.pending_writes == 0)
            assert (rig.engine.health().status, rig.engine.health().bank.sessions) == ("ok", 1)

            def fail(self: Index, sql: str, *values: object) -> list[tuple[object, ...]]:
                raise BankError("index.db: disk I/O error")

            with monkeypatch.context() as broken:
                broken.setattr(Index, "_rows", fail)
                bank._disk.index._totals = None  # type: ignore[union-attr]
                health = rig.engine.health()
                assert b"forerun_bank_pending_writes 0.0" in generate_latest(rig.engine.registry)
            assert (health.status, health.reasons, health.bank.sessions) == ("degraded", ("index.db: disk I/O error",), 1)
            assert rig.engine.health().status == "ok"

    asyncio.run(scenario())
