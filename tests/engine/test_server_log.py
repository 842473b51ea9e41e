"""What the server's log says of a request: when it starts, what it waits for, how far its prefill is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from tests.engine.engines import events, running

from forerun.engine import worker
from forerun.log import TextFormatter
from forerun.values import QueuePosition

ID = "chatcmpl-0123456789abcdef0123456789abcdef"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The log's lines so far, as they are printed, without their time."""
    found: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(TextFormatter().format(record).partition(" ")[2])

    handler, log = Lines(), logging.getLogger("forerun.engine")
    log.addHandler(handler)
    with caplog.at_level(logging.INFO, "forerun.engine"):
        yield found
    log.removeHandler(handler)


def test_a_request_starts_and_its_prefill_is_followed(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOG_S", 0.0)

    async def ask() -> None:
        async with running() as rig:
            rig.gate.open()
            await events(await rig.ask(range(100, 1400), id=ID))

    asyncio.run(ask())
    own = [line.removeprefix("[0123456789ab] ") for line in lines if line.startswith("[0123456789ab] ")]
    assert own[0] == "starts: a prompt of 1,300 tokens"
    assert [line.partition(", about")[0] for line in own[1:-1]] == [
        "prefill: 512 of 1,300 tokens, 0 of them reused",
        "prefill: 1,024 of 1,300 tokens, 0 of them reused",
    ]
    assert own[-1].startswith("ends: 0.0 s in the queue, 0.0 s for others, 1.0 sequences and ")
    assert own[1].endswith(" s left")


def test_a_short_prefill_is_not_followed(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOG_S", 1e9)

    async def ask() -> None:
        async with running() as rig:
            rig.gate.open()
            await events(await rig.ask(range(100, 1400), id=ID))

    asyncio.run(ask())
    assert [line for line in lines if "prefill" in line] == []


def test_queued_requests_show_their_place(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "QUEUED_S", -1.0)

    async def ask() -> list[list[int]]:
        async with running(max_running=1) as rig:
            rig.gate.hold()
            runs = [await rig.ask(range(100, 200))]
            await rig.gate.reached(1)
            runs += [await rig.ask(range(start, start + 50)) for start in (300, 400)]
            rig.gate.open()
            found = [await events(run) for run in runs]
            return [[event.ahead for event in own if isinstance(event, QueuePosition)] for own in found]

    assert asyncio.run(ask()) == [[], [1], [2, 1]]
    assert [line for line in lines if "waits" in line] == ["waits for 1 other request", "waits for 2 other requests"]
    assert sum("s in the queue: a prompt of 50 tokens" in line for line in lines) == 2


def test_a_request_that_ends_shows_what_it_shared(lines: list[str]) -> None:
    """The second forks the first, which decodes with it."""

    async def ask() -> None:
        async with running() as rig:
            rig.gate.hold(after=1)
            first = await rig.ask(range(100, 200), max_tokens=40)
            await rig.gate.reached(2)
            second = await rig.ask([*range(100, 200), 7], max_tokens=40)
            rig.gate.open()
            await asyncio.gather(events(first), events(second))

    asyncio.run(ask())
    ends = [line for line in lines if "ends:" in line]
    assert len(ends) == 2
    assert [line for line in ends if ", 1.0 sequences" in line] == []
    assert sum(", forked from " in line for line in ends) == 1
