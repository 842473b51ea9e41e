"""Case 18: a conversation that ends with the assistant's message is counted and answered."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.rendered import CHAT, COUNT, MESSAGES, RESPONSES, Answers, case

CASE = case("18-ends-with-assistant")["requests"]
NOTE = "the last message is the assistant's: the answer begins a message of its own and does not continue that one"
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def test_the_case(server: Answers) -> None:
    count, message = CASE
    assert server.report(MESSAGES, message["body"])["rendering"] == [NOTE]
    num_tokens = len(server.prompt.tokens)
    response = server.post(COUNT, count["body"])
    assert (response.status_code, response.json()) == (200, {"input_tokens": num_tokens})


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_every_dialect_answers_and_notes_it(server: Answers, path: str) -> None:
    body: dict[str, Any] = {"max_output_tokens": 4, "input": TURNS} if path == RESPONSES else {"max_tokens": 4, "messages": TURNS}
    assert server.report(path, body)["rendering"] == [NOTE]
    assert server.text(path, body).endswith("\n\nb<|im_end|>\n<|im_start|>assistant\n<think>\n")


def test_a_call_without_its_result_is_counted_and_answered(server: Answers) -> None:
    messages = [TURNS[0], {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]
    assert server.report(MESSAGES, {"max_tokens": 4, "messages": messages})["rendering"] == [NOTE]
    assert server.post(COUNT, {"messages": messages}).json() == {"input_tokens": len(server.prompt.tokens)}


def test_the_next_turn_reuses_the_answer(server: Answers) -> None:
    turns = [{"role": "user", "content": "a " * 60}, TURNS[1]]
    first = server.post(MESSAGES, {"max_tokens": 4, "temperature": 0, "messages": turns}).json()
    more = [*turns, {"role": "assistant", "content": first["content"]}, TURNS[0]]
    report = server.post(MESSAGES, {"max_tokens": 4, "temperature": 0, "messages": more}).json()["forerun"]
    assert report["reused_tokens"] >= sum(first["usage"][name] for name in ("input_tokens", "cache_read_input_tokens"))
