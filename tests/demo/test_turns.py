"""The five turns on a scripted server: the order of the requests, and what happens to the server between the turns."""

from __future__ import annotations

from typing import Any

import pytest
from tests.wire import Wire, report, serving, stream

from forerun.demo.conversation import SMALL, record
from forerun.demo.turns import STEPS, Said, play
from forerun.errors import ForerunError
from forerun.serve.client import health
from forerun.values import PrefillProgress

CONVERSATION = record({"a.py": "raise bank\n"}, SMALL, len)


class Double:
    """A stand-in for a server process that records what is done to it."""

    def __init__(self, wire: Wire, done: list[str]) -> None:
        self.url, self._done = wire.url, done
        done.append("start")

    def stop(self) -> None:
        self._done.append("stop")

    def kill(self) -> None:
        self._done.append("kill")

    def wait_until_written(self) -> None:
        self._done.append(f"written {health(self.url)['bank']['pending_writes']}")


def played(wire: Wire) -> tuple[list[str], list[Any], list[Any]]:
    for number, step in enumerate(STEPS):
        wire.answers.append(stream(f"answer {number}", report(step.source)))
        wire.answers.append(stream(f"bypass {number}", report()))
    done: list[str] = []
    reported: list[str | Said | PrefillProgress] = []
    turns = list(play(CONVERSATION, SMALL, lambda: Double(wire, done), reported.append))
    return done, turns, reported


def test_the_server_is_stopped_killed_and_stopped() -> None:
    with serving() as wire:
        done, turns, reported = played(wire)
    assert done == ["start", "stop", "start", "written 0", "kill", "start", "stop", "kill"]
    assert [turn.answer.text for turn in turns] == [f"answer {n}" for n in range(5)]
    assert [turn.bypass.text for turn in turns] == [f"bypass {n}" for n in range(5)]
    assert PrefillProgress(5, 10, 0, None) in reported
    said = [each for each in reported if isinstance(each, Said)]
    assert said[:2] == [Said("user", turns[0].messages[-1]["content"]), Said("model", "answer 0")]
    assert [each.speaker for each in said] == ["user", "model"] * 5
    assert any("SIGTERM" in str(each) for each in reported)


def test_each_request_is_the_last_one_with_its_answer_and_the_next_recorded_turn() -> None:
    with serving() as wire:
        played(wire)
        bodies = wire.bodies
    assert [body["forerun"]["bank"] for body in bodies] == ["use", "bypass"] * 5
    assert all(body["temperature"] == 0 and body["max_tokens"] == 64 and body["enable_thinking"] is False for body in bodies)
    prompts = [body["messages"] for body in bodies[::2]]
    assert prompts == [body["messages"] for body in bodies[1::2]]
    assert prompts[0] == list(CONVERSATION.opening)
    for number, continuation in enumerate(CONVERSATION.continuations):
        assert prompts[number + 1] == [*prompts[number], {"role": "assistant", "content": f"answer {number}"}, *continuation]


def test_a_failure_leaves_no_server_behind() -> None:
    done: list[str] = []
    with serving() as wire:
        wire.answers.append((500, {"error": {"message": "no"}}))
        with pytest.raises(ForerunError):
            list(play(CONVERSATION, SMALL, lambda: Double(wire, done), lambda _: None))
    assert done == ["start", "kill"]
