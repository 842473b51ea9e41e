"""Plays the five turns against real server processes: where each turn's state must come from, what happens to the server before it, and the
answers with their reports.

Every request is sent twice, with the bank and with bypass. Knows the API and the processes; compare.py checks the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Literal

from forerun.demo.conversation import Conversation, Message, Scale
from forerun.demo.server import Server
from forerun.serve.client import Delta, End, stream_chat
from forerun.values import BankUse, PrefillProgress, Source

TEXT_CHARS = 300  # of a message that is shown
TEMPLATE_ARGS = {"enable_thinking": False}


@dataclass(frozen=True, slots=True)
class Step:
    """A turn to play: its name, the source that its state must come from, and what is done to the server before."""

    name: str
    source: Source
    before: Literal["nothing", "SIGTERM", "kill -9"]

    @property
    def path(self) -> str:
        """Source and action as one text."""
        return self.source if self.before == "nothing" else f"{self.source}, {self.before}"


STEPS = (
    Step("A1", "cold", "nothing"),
    Step("A2", "ssd", "SIGTERM"),
    Step("A3", "ram", "nothing"),
    Step("A4", "ssd", "kill -9"),
    Step("A5", "ram", "nothing"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The response's text, its OpenAI usage object and its `forerun` object (fields of values.Report)."""

    text: str
    usage: dict[str, Any]
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """What one side of the conversation says, shortened."""

    speaker: Literal["user", "model"]
    text: str


OnProgress = Callable[[str | Said | PrefillProgress], None]  # receives lines for people, the dialogue, and the progress of a long prefill


@dataclass(frozen=True, slots=True)
class Turn:
    """A played turn: the request's messages, the answer with the bank, and the one with bypass."""

    step: Step
    messages: tuple[Message, ...]
    answer: Answer
    bypass: Answer


def play(conversation: Conversation, scale: Scale, start: Callable[[], Server], report: OnProgress) -> Iterator[Turn]:
    """Play the turns of `conversation` on servers that `start` starts. Raises ForerunError."""
    report("starting a server")
    server = start()
    try:
        messages = conversation.opening
        for step, continuation in zip(STEPS, (*conversation.continuations, ()), strict=True):
            server = _restart(step, server, start, report)
            turn = _turn(step, messages, conversation, scale, server.url, report)
            messages = (*messages, {"role": "assistant", "content": turn.answer.text}, *continuation)
            yield turn
        server.stop()
    finally:
        server.kill()


def request(conversation: Conversation, scale: Scale, messages: tuple[Message, ...], bank: BankUse) -> dict[str, Any]:
    """The body of a request: greedy, without reasoning."""
    return {
        "model": "demo",
        "messages": list(messages),
        "tools": list(conversation.tools),
        "temperature": 0,
        "max_tokens": scale.answer_tokens,
        "forerun": {"bank": bank},
        **TEMPLATE_ARGS,
    }


def _restart(step: Step, server: Server, start: Callable[[], Server], report: OnProgress) -> Server:
    if step.before == "nothing":
        return server
    if step.before == "SIGTERM":
        report("stopping the server (SIGTERM) and starting a new one")
        server.stop()
    else:
        report("waiting until all is on disk")
        server.wait_until_written()
        report("killing the server (kill -9) and starting a new one")
        server.kill()
    return start()


def _turn(step: Step, messages: tuple[Message, ...], conversation: Conversation, scale: Scale, url: str, report: OnProgress) -> Turn:
    report(f"{step.name}: " + ("first prefill of the conversation" if step.source == "cold" else "continuing the conversation"))
    report(Said("user", shorten(messages[-1]["content"], TEXT_CHARS, placeholder=" ...")))
    answer = _ask(url, request(conversation, scale, messages, "use"), report)
    report(Said("model", shorten(answer.text, TEXT_CHARS, placeholder=" ...") or "(no text)"))
    report(f"{step.name}: the same request without stored state, to compare")
    return Turn(step, messages, answer, _ask(url, request(conversation, scale, messages, "bypass"), report))


def _ask(url: str, body: dict[str, Any], report: OnProgress) -> Answer:
    text: list[str] = []
    for piece in stream_chat(url, body):
        match piece:
            case PrefillProgress():
                report(piece)
            case Delta():
                text.append(piece.text)
            case End():
                return Answer("".join(text), piece.usage, piece.report)
    raise AssertionError("stream_chat ends with an End or raises")
