"""Turns of a conversation on a real engine around the fake family, which generates given texts in tokens that no tokenizer makes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.engines import Rig, events, running
from tests.fake_family import after
from tests.talking import tokenizer
from tests.text.test_answer_memory import THOUGHT, TOOL, oddly

from forerun.engine.request import Request
from forerun.text.message import AssistantMessage
from forerun.values import CallArguments, CallStart, Chat, Content, Done, Reasoning, Report

Messages = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Turn:
    """prompt: its tokens; stored: those of the state after it; message: the answer as the client got it."""

    prompt: list[int]
    stored: list[int]
    message: dict[str, Any]
    report: Report


async def take_turn(rig: Rig, messages: Messages, text: str = THOUGHT + "Done.", **fields: Any) -> Turn:
    """A turn in which the model generates the text."""
    rig.gate.hold()
    run = await rig.ask([], prompt=Chat(messages, (TOOL,), {}), max_tokens=1000, **fields)
    assert isinstance(run, Request)
    prompt, sampled = list(run.prompt.tokens), oddly(tokenizer(), text)
    rig.family.script = after(len(prompt), sampled, min(tokenizer().stop_ids))
    rig.gate.open()
    message = AssistantMessage()
    for event in await events(run):
        if isinstance(event, Reasoning | Content | CallStart | CallArguments):
            message.take(event)
    assert isinstance(event, Done)
    return Turn(prompt, [*prompt, *sampled], message.value(), event.report)


def turn(folder: Path, messages: Messages, text: str = THOUGHT + "Done.", **fields: Any) -> Turn:
    """A turn on a new engine."""

    async def run() -> Turn:
        async with running(folder, forgets=True) as rig:
            return await take_turn(rig, messages, text, **fields)

    return asyncio.run(run())
