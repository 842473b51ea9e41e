"""A model that writes the tags of reasoning as text."""

from __future__ import annotations

import pytest
from tests.cases.dictation import answers

TOOLS = {"read": {"type": "object", "properties": {"path": {"type": "string"}}}}


@pytest.mark.parametrize(
    "text", ["The pair <think> and </think> marks it.", "Close it with </think> here.", "Open it with <think>, then write."]
)
@pytest.mark.parametrize("tools", [{}, TOOLS])
def test_tags_behind_the_reasoning_are_content(text: str, tools: dict[str, object]) -> None:
    for answer in answers(f"Hm.\n</think>\n\n{text}", written="qwen", tools=tools, max_tokens=400):
        assert (answer.reasoning, answer.text, answer.calls) == ("Hm.\n", text, ())
