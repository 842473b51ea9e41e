"""Real weights: SmolLM2-135M-Instruct, served from its GGUF file, plays five turns over two restarts. Its answers are English, the same
with and without stored state.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forerun.demo.conversation import Conversation, Message, Scale, user
from forerun.demo.server import Server, serve_command
from forerun.demo.turns import STEPS, Turn, play

pytestmark = pytest.mark.real
QUESTIONS = [
    "What is the capital of France?",
    "Name three things that one can see there.",
    "What do people eat for breakfast in that city? Answer in two sentences.",
    "Write one sentence about the river Seine.",
    "Thank you. What did I ask you first?",
]
SYSTEM: Message = {"role": "system", "content": "You are a helpful assistant. You answer briefly, in plain English."}
TALK = Conversation((), (SYSTEM, user(QUESTIONS[0])), tuple((user(question),) for question in QUESTIONS[1:]))
COMMON = {"the", "of", "a", "and", "is", "in", "to"}


@pytest.fixture(scope="module")
def turns(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Turn]:
    home = tmp_path_factory.mktemp("home")

    def start() -> Server:
        return Server.start(serve_command(smollm2, home / "bank"), home / "server.log")

    return list(play(TALK, Scale("real", 0, 0, answer_tokens=60), start, print))


def test_every_turn_has_its_source(turns: list[Turn]) -> None:
    assert [turn.answer.report["source"] for turn in turns] == [step.source for step in STEPS]
    assert all(turn.answer.report["reused_tokens"] > 0 for turn in turns[1:])
    assert {turn.answer.report["numerics"] for turn in turns} == {"exact"}


def test_answers_are_those_without_stored_state(turns: list[Turn]) -> None:
    for turn in turns:
        assert turn.answer.text == turn.bypass.text
        assert turn.answer.usage["completion_tokens"] == turn.bypass.usage["completion_tokens"]
        assert turn.bypass.report["reused_tokens"] == 0


def test_answers_are_english(turns: list[Turn]) -> None:
    assert "Paris" in turns[0].answer.text
    for turn in turns:
        words = re.findall(r"[A-Za-z']+", turn.answer.text)
        assert len("".join(words)) > 0.7 * len(turn.answer.text.replace(" ", ""))
        assert len(words) < 8 or COMMON & {word.lower() for word in words}
        assert "<|" not in turn.answer.text
