"""Every request is one line of the request log, however it ends; the line agrees with the response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import Rig, events, running
from tests.talking import tokenizer

from forerun import values
from forerun.decode.prefill import CHUNK_TOKENS
from forerun.engine.request import Request
from forerun.engine.request_recorder import RequestLog
from forerun.errors import ForerunError
from forerun.request_log.entry import Content, Entry, decode
from forerun.request_log.file import LogFile
from forerun.values import Done, TokenPrompt

PROMPT = [(11 * i + i // 3) % 6000 for i in range(40)]
LONG = [(13 * i + i // 7) % 6000 for i in range(3 * CHUNK_TOKENS)]


def entries(folder: Path, scenario: Callable[[Rig], Awaitable[None]], *, with_content: bool = False, **options: Any) -> list[Entry]:
    """The entries of a log of the scenario."""
    log = RequestLog(LogFile(folder / "requests.jsonl", 1 << 20), "fake", with_content)

    async def run() -> None:
        async with running(log=log, **options) as rig:
            await scenario(rig)

    asyncio.run(run())
    return [decode(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def test_a_served_request_is_logged_as_it_was_reported(tmp_path: Path) -> None:
    reported: list[Done] = []

    async def scenario(rig: Rig) -> None:
        for _ in range(2):
            last = (await events(await rig.ask(PROMPT, tenant="me")))[-1]
            assert isinstance(last, Done)
            reported.append(last)

    found = entries(tmp_path, scenario)
    assert [(e.usage, e.report, e.outcome) for e in found] == [(d.usage, d.report, d.finish) for d in reported]
    assert [(e.model, e.tenant, e.prompt_tokens, e.error, e.content) for e in found] == [("fake", "me", len(PROMPT), None, None)] * 2
    assert [e.report.source for e in found if e.report] == ["cold", "ram"]
    assert all(e.report and e.report.ttft_s <= e.seconds for e in found)


@pytest.mark.parametrize("is_removed", [True, False])
def test_the_texts_of_a_conversation_that_is_removed_while_it_runs_are_not_logged(is_removed: bool, tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.gate.hold(after=1)
        run = await rig.ask(LONG)
        assert isinstance(run, Request)
        await rig.gate.reached(2)
        run.running.is_removed = is_removed
        rig.gate.open()
        await events(run)

    (entry,) = entries(tmp_path, scenario, with_content=True)
    assert (entry.content is None) == is_removed


def test_a_cancelled_request_is_logged_in_every_phase(tmp_path: Path) -> None:
    async def cancel(rig: Rig, tokens: list[int], after: int) -> None:
        passes = len(rig.gate.rows)
        rig.gate.hold(after=after)
        run, waiting = await rig.ask(tokens, max_tokens=1000), await rig.ask(PROMPT[9:])
        await rig.gate.reached(passes + after + 1)
        waiting.cancel()
        assert rig.engine.health().waiting == 0
        run.cancel()
        rig.gate.open()
        for each in (run, waiting):
            with pytest.raises(ForerunError, match="the client disconnected"):
                await events(each)

    async def scenario(rig: Rig) -> None:
        await cancel(rig, LONG, after=0)
        await cancel(rig, PROMPT, after=3)

    waiting, prefilling, _, answering = entries(tmp_path, scenario, max_running=1)
    assert {e.outcome for e in (waiting, prefilling, answering)} == {"cancelled"}
    assert (waiting.prefill_progress, waiting.report) == (None, None)
    assert prefilling.prefill_progress
    assert (prefilling.prefill_progress.done_tokens, prefilling.report) == (CHUNK_TOKENS, None)
    assert answering.usage
    assert answering.report
    assert answering.usage.completion_tokens >= 3
    assert answering.report.prefill_tok_per_s


def test_a_failure_is_logged_without_what_it_may_quote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        for error in (ZeroDivisionError("of a secret"), ForerunError("our own message")):
            rig.gate.errors.append(error)
            with pytest.raises(type(error)):
                await events(await rig.ask(PROMPT))

    with caplog.at_level(logging.CRITICAL):
        found = entries(tmp_path, scenario)
    assert [(e.outcome, e.error) for e in found] == [("error", "ZeroDivisionError"), ("error", "ForerunError: our own message")]


def test_content_is_logged_only_if_requested(tmp_path: Path) -> None:
    answers: list[str] = []

    async def scenario(rig: Rig) -> None:
        answers.append("".join(e.text for e in await events(await rig.ask(PROMPT)) if isinstance(e, values.Content)))

    (found,) = entries(tmp_path, scenario, with_content=True)
    assert found.content == Content(TokenPrompt(tuple(PROMPT)), answers[0])
    assert answers[0] not in (tmp_path / "requests.jsonl").read_text().split('"content"')[0]
    assert tokenizer().encode(answers[0], tenant="")


def test_requested_and_actual_layouts_are_logged(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for tokens in (PROMPT, LONG):
            await events(await rig.ask(tokens))

    short, long = (e.report for e in entries(tmp_path, scenario, dense_tokens=120))
    assert short
    assert long
    dense, paged = ("contiguous",) * 4, ("contiguous", "contiguous", "paged(64)", "paged(64)")
    for report, expected in ((short, dense), (long, paged)):
        layouts = (report.prefill_layout, report.requested_prefill_layout, report.layout, report.requested_layout)
        assert layouts == expected
    assert (short.paged_blocks, long.paged_blocks >= len(LONG) // 64) == (0, True)
