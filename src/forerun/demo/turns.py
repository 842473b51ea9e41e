"""Plays the five turns against real server processes: which path each must take, what happens before it, and the answers with their cost.

Every turn is asked twice, with the bank and past it (bypass). Knows the wire and the processes; judges nothing (compare does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from forerun.demo.conversation import Conversation, Message, Scale
from forerun.serve.client import Delta, End, stream_chat
from forerun.values import BankUse, PrefillProgress, Source

# Hears what is going on: a line for people, or how far a long prompt has been read.
Tell = Callable[[str | PrefillProgress], None]
TEMPLATE_ARGS = {"enable_thinking": False}


@dataclass(frozen=True, slots=True)
class Step:
    """A turn to play: its name, the path that it must take, and what is done to the server before."""

    name: str
    source: Source
    before: Literal["nothing", "SIGTERM", "kill -9"]

    @property
    def path(self) -> str:
        """The path in words."""
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
    """What came back: the text, the OpenAI usage object and the `forerun` object (fields of values.Report)."""

    text: str
    usage: dict[str, Any]
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A played turn: what was asked, the answer with the bank and the answer past it."""

    step: Step
    messages: tuple[Message, ...]
    answer: Answer
    bypass: Answer


class Running(Protocol):
    """A server process, see server.Server."""

    url: str

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def wait_until_written(self) -> None: ...


def play(conversation: Conversation, scale: Scale, start: Callable[[], Running], tell: Tell) -> Iterator[Turn]:
    """The turns of `conversation`, one after the other, on servers that `start` starts. Raises ForerunError."""
    tell("starting a server")
    server = start()
    try:
        messages = conversation.opening
        for step, continuation in zip(STEPS, (*conversation.continuations, ()), strict=True):
            server = _restart(step, server, start, tell)
            turn = _turn(step, messages, conversation, scale, server.url, tell)
            messages = (*messages, {"role": "assistant", "content": turn.answer.text}, *continuation)
            yield turn
        server.stop()
    finally:
        server.kill()


def request(conversation: Conversation, scale: Scale, messages: tuple[Message, ...], bank: BankUse) -> dict[str, Any]:
    """The body of a request: greedy, without thinking."""
    return {
        "model": "demo",
        "messages": list(messages),
        "tools": list(conversation.tools),
        "temperature": 0,
        "max_tokens": scale.answer_tokens,
        "forerun": {"bank": bank},
        **TEMPLATE_ARGS,
    }


def _restart(step: Step, server: Running, start: Callable[[], Running], tell: Tell) -> Running:
    if step.before == "nothing":
        return server
    if step.before == "SIGTERM":
        tell("stopping the server (SIGTERM) and starting a new one")
        server.stop()
    else:
        tell("waiting until all is on disk")
        server.wait_until_written()
        tell("killing the server (kill -9) and starting a new one")
        server.kill()
    return start()


def _turn(step: Step, messages: tuple[Message, ...], conversation: Conversation, scale: Scale, url: str, tell: Tell) -> Turn:
    tell(f"{step.name}: " + ("reading the conversation for the first time" if step.source == "cold" else "going on with the conversation"))
    answer = _ask(url, request(conversation, scale, messages, "use"), tell)
    tell(f"{step.name}: the same request without stored state, to compare")
    return Turn(step, messages, answer, _ask(url, request(conversation, scale, messages, "bypass"), tell))


def _ask(url: str, body: dict[str, Any], tell: Tell) -> Answer:
    text: list[str] = []
    for piece in stream_chat(url, body):
        match piece:
            case PrefillProgress():
                tell(piece)
            case Delta():
                text.append(piece.text)
            case End():
                return Answer("".join(text), piece.usage, piece.report)
    raise AssertionError("stream_chat ends with an End or raises")
