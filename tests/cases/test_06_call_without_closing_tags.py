"""Models that leave out closing tags of a call."""

from __future__ import annotations

import json

import pytest
from tests.cases.dictation import answers, case, dictate

CASE = case("06-call-without-closing-tags.json")
TOOLS = {"read": {"type": "object", "properties": {"path": {"type": "string"}}}}
TEXTS = CASE["model_texts"]
OTHERS = {
    "qwen": TEXTS["no </parameter>"] + "\n" + TEXTS["no </function>"].replace("\na\n", "\nb\n"),
    "glm": "".join(f"<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>{value}\n</tool_call>\n" for value in "ab"),
    "hermes": "".join(f'<tool_call>\n{{"name": "read", "arguments": {{"path": "{value}"}}}}\n' for value in "ab"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_an_argument_ends_where_its_call_ends(name: str) -> None:
    for answer in answers(f"</think>\n\n{TEXTS[name]}", written="qwen", tools=TOOLS, max_tokens=400):
        paths = ("a", "b") if name.startswith("two calls") else ("a",)
        assert [json.loads(arguments) for _, _, arguments in answer.calls] == [{"path": path} for path in paths]
        assert answer.finish in ("tool_calls", "tool_use", "completed")


@pytest.mark.parametrize("written", OTHERS)
def test_a_second_call_is_a_second_call(written: str) -> None:
    for answer in answers(f"</think>\n\n{OTHERS[written]}", written=written, tools=TOOLS, max_tokens=400):
        assert [json.loads(arguments) for _, _, arguments in answer.calls] == [{"path": "a"}, {"path": "b"}]


def test_a_call_that_the_limit_cuts_off_is_not_whole() -> None:
    text = f"</think>\n\n{TEXTS['no </parameter>']}\n" + "and so on " * 50
    request = {"input": "x", "tools": [{"type": "function", "name": "read", "parameters": TOOLS["read"]}], "max_output_tokens": 80}
    response = dictate(text, "/v1/responses", request, written="qwen").json()
    assert (response["status"], response["output"][-1]["status"]) == ("incomplete", "incomplete")
