"""Every reason for which a prompt is read again, brought about for real, and what `forerun bank explain` makes of the request's log."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.cli.conftest import Ran
from tests.engine.engines import Rig, events, running
from tests.fake_family import FakeFamily, scattered
from tests.records import path_of
from tests.talking import IDENTITY
from tests.waiting import LIMIT_S, until

from forerun.bank.live import LiveConversation
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.cli.bank import shrink
from forerun.engine.request_recorder import RequestLog
from forerun.request_log.file import LogFile
from forerun.state.record import SEGMENT_TOKENS
from forerun.values import Chat

PROMPT = [(11 * i + i // 3) % 6000 for i in range(40)]
LONG = [(13 * i + i // 7) % 6000 for i in range(3 * SEGMENT_TOKENS)]
SEGMENT_BYTES = SEGMENT_TOKENS * FakeFamily(scattered(10), 10).spec.bytes_per_token
Forerun = Callable[..., Ran]


@dataclass
class Life:
    """What a server lives through. options: of its bank. does: what happens in it, with `folder` for the bank's folder."""

    does: Callable[[Rig], Awaitable[None]]
    options: dict[str, Any] = field(default_factory=dict)


def asks(*prompts: list[int], **options: Any) -> Callable[[Rig], Awaitable[None]]:
    """Asks these, one after the other."""

    async def does(rig: Rig) -> None:
        for prompt in prompts:
            await events(await rig.ask(prompt, max_tokens=4, **options))

    return does


def under(patch: Callable[[Rig], Any], prompt: list[int]) -> Callable[[Rig], Awaitable[None]]:
    """Asks while something fails; all that it leaves to write is written meanwhile."""

    async def does(rig: Rig) -> None:
        with patch(rig):
            await events(await rig.ask(prompt, max_tokens=4))
            await until(lambda: not rig.engine.health().bank.pending_writes)

    return does


def disk(rig: Rig) -> DiskTier:
    found = rig.engine.worker.model().bank._disk
    assert found is not None
    return found


def full(code: int) -> Callable[[Rig], Any]:
    """The system refuses to write a byte of a record."""
    return lambda rig: mock.patch.object(os, "fsync", side_effect=OSError(code, os.strerror(code)))


def no_memory(rig: Rig) -> Any:
    return mock.patch.object(LiveConversation, "capture", side_effect=MemoryError)


def out_of_budget(rig: Rig) -> Any:
    return mock.patch.object(disk(rig), "daily_limit_bytes", 0)


async def fails(rig: Rig) -> None:
    rig.gate.errors.append(ZeroDivisionError("in the model"))
    with pytest.raises(ZeroDivisionError):
        await events(await rig.ask(PROMPT))
    await events(await rig.ask(PROMPT, max_tokens=4))


async def damaged(rig: Rig) -> None:
    for info in disk(rig).index.inventory():
        path_of(disk(rig)._folder, info.key).write_bytes(b"damaged")
    await asks(PROMPT)(rig)


async def removed(rig: Rig) -> None:
    for info in disk(rig).index.inventory():
        path_of(disk(rig)._folder, info.key).unlink()
    await asks(PROMPT)(rig)


async def pruned(rig: Rig) -> None:
    assert list(shrink(disk(rig), 0))
    await asks(PROMPT)(rig)


async def without_a_table(rig: Rig) -> None:
    assert disk(rig).wait_until_reconciled(LIMIT_S)  # which reads the tables
    disk(rig).index._connection.execute("DROP TABLE lost")
    await asks(PROMPT)(rig)


def chat(text: str) -> Chat:
    return Chat(({"role": "system", "content": "You help."}, {"role": "user", "content": text}), (), {})


async def edited(rig: Rig) -> None:
    for text in ("What is red?", "What is blue?"):
        await events(await rig.ask([], prompt=chat(text), max_tokens=4))


async def with_another_tool(rig: Rig) -> None:
    for words in ("Looks at it.", "Looks into it."):
        tool = {"type": "function", "function": {"name": "look", "description": words, "parameters": {}}}
        await events(await rig.ask([], prompt=replace(chat("Look!"), tools=(tool,)), max_tokens=4))


def other(name: str) -> list[Life]:
    return [Life(asks(PROMPT)), Life(asks(PROMPT), {"identity": replace(IDENTITY, **{name: "other"})})]


SELDOM = [f"other {name}" for name in IDENTITY.fields if name not in ("weights", "numerics")]
NO_ROOM = "not stored: no disk capacity: "
REASONS: dict[str, tuple[list[Life], str, str]] = {
    "new": ([Life(asks(PROMPT))], "new", "no stored conversation begins like this prompt"),
    "another tenant's": ([Life(asks(PROMPT)), Life(asks(PROMPT, tenant="b"))], "new", "no stored conversation begins like this prompt"),
    "edited": ([Life(edited)], "differs", "content of message 1 (user)"),
    "a tool edited": ([Life(with_another_tool)], "differs", "in tool look"),
    "between marks": ([Life(asks(PROMPT, PROMPT[:30]))], "no snapshot", "stored up to token 30; there is no snapshot before that"),
    "RAM was short": ([Life(asks(PROMPT, PROMPT), {"ram_limit_bytes": 1, "folder": None})], "evicted", "RAM was short"),
    "the quota": (
        [
            Life(asks(PROMPT, *[LONG[i:] for i in range(1, 4)]), {"disk_limit_bytes": INDEX_SLACK_BYTES + 5 * SEGMENT_BYTES}),
            Life(asks(PROMPT)),
        ],
        "evicted",
        "evicted: the disk quota was reached",
    ),
    "larger than the quota": (
        [Life(asks(LONG), {"disk_limit_bytes": INDEX_SLACK_BYTES + 3 * SEGMENT_BYTES}), Life(asks(LONG))],
        "not stored",
        f"{NO_ROOM}quota",
    ),
    "larger than all": (
        [Life(asks(PROMPT), {"disk_limit_bytes": INDEX_SLACK_BYTES + 9}), Life(asks(PROMPT))],
        "not stored",
        f"{NO_ROOM}size",
    ),
    "the day's budget": ([Life(under(out_of_budget, PROMPT)), Life(asks(PROMPT))], "not stored", f"{NO_ROOM}daily write budget"),
    "the disk is full": ([Life(under(full(errno.ENOSPC), PROMPT)), Life(asks(PROMPT))], "not stored", f"{NO_ROOM}disk"),
    "the disk failed": ([Life(under(full(errno.EIO), PROMPT)), Life(asks(PROMPT))], "not stored", "not stored: the disk failed"),
    "no memory to copy": ([Life(under(no_memory, PROMPT)), Life(asks(PROMPT))], "not stored", "not stored: it could not be copied"),
    "a failure": ([Life(fails)], "not stored", "not stored: the request that computed it failed"),
    "damaged": ([Life(asks(PROMPT)), Life(damaged)], "damaged", "set aside: "),
    "removed": ([Life(asks(PROMPT)), Life(removed)], "damaged", "damaged: its file was removed"),
    "pruned": ([Life(asks(PROMPT)), Life(pruned)], "evicted", "evicted: `forerun bank prune` removed it"),
    "an index that fails": ([Life(asks(PROMPT)), Life(without_a_table)], "failed", "the bank failed: "),
    "bypass": ([Life(asks(PROMPT, PROMPT)), Life(asks(PROMPT, bank="bypass"))], "bypass", "bypass"),
    **{f"other {name}": (other(name), "identity", f"another identity: {name} differs") for name in IDENTITY.fields},
}


async def play(folder: Path, log: Path, lives: list[Life]) -> None:
    for each in lives:
        options = {"folder": folder, **each.options}
        async with running(**options, log=RequestLog(LogFile(log, 1 << 20), "fake", with_content=True)) as rig:
            await each.does(rig)


CASES = [pytest.param(*reason, id=name, marks=[pytest.mark.long] * (name in SELDOM)) for name, reason in REASONS.items()]


@pytest.mark.parametrize(("lives", "kind", "words"), CASES)
def test_a_logged_request_is_explained(
    lives: list[Life], kind: str, words: str, forerun: Forerun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(100):
        asyncio.run(play(tmp_path / "bank", log := tmp_path / "requests.jsonl", lives))
    id = json.loads(log.read_text().splitlines()[-1])["id"]
    printed = json.loads(forerun("bank", "explain", id, "--log", log, "--json").out)
    assert printed["miss"]["kind"] == kind, printed
    ran = forerun("bank", "explain", id, "--log", log)
    assert ran.code == 0
    assert words in ran.out
