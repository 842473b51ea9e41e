"""A model that calls a tool inside reasoning that it never closes."""

from __future__ import annotations

import json

import pytest
from tests.cases.dictation import answers, case

CASE = case("03-call-inside-open-thinking.json")
TOOLS = {"read": {"type": "object", "properties": {"path": {"type": "string"}}}}
TEXTS = {**CASE["model_texts"], "glm": "I look.\n<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n</tool_call>"}
TEXTS["gemma"] = 'I look.\n<|tool_call>call:read{path:<|"|>a.py<|"|>}<tool_call|>'


@pytest.mark.parametrize("name", TEXTS)
def test_an_answer_that_ends_with_a_call_is_read_as_that_call(name: str) -> None:
    text = TEXTS[name]
    for answer in answers(text, written="qwen" if name == "closed after" else name, tools=TOOLS, max_tokens=400):
        assert [(tool, json.loads(arguments)) for _, tool, arguments in answer.calls] == [("read", {"path": "a.py"})]
        assert (answer.text, answer.reasoning) == ("", text.partition("<")[0])
        assert answer.finish in ("tool_calls", "tool_use", "completed")


@pytest.mark.parametrize("behind", ["\n</think>\n\nDone.", "\nNot yet."])
def test_with_more_behind_it_a_call_is_reasoning(behind: str) -> None:
    text = CASE["model_texts"]["qwen"] + behind
    for answer in answers(text, written="qwen", tools=TOOLS, max_tokens=400):
        reasoning, _, content = text.partition("</think>\n\n")
        assert (answer.reasoning, answer.text, answer.calls) == (reasoning, content, ())
        assert answer.finish in ("stop", "end_turn", "completed")


def test_a_call_of_another_tool_is_reasoning() -> None:
    for answer in answers(CASE["model_texts"]["qwen"], written="qwen", tools={"write": {}}, max_tokens=400):
        assert (answer.reasoning, answer.text, answer.calls) == (CASE["model_texts"]["qwen"], "", ())
