"""The part of a conversation that a character belongs to, and the field of a message."""

from __future__ import annotations

from typing import Any

import pytest
from tests.text.test_answer_memory import STRIPPING, USER

from forerun.models.load import DEMO_MODEL
from forerun.text.prompt_locations import REST, PromptLocator
from forerun.text.template import Template
from forerun.values import Chat

TEMPLATE = Template.load(DEMO_MODEL)
TOOLS: tuple[dict[str, Any], ...] = tuple(
    {"type": "function", "function": {"name": name, "description": f"AT THE {name}", "parameters": {}}} for name in ("ONE", "TWO")
)
MESSAGES: tuple[dict[str, Any], ...] = (
    {"role": "system", "content": "AT THE SYSTEM"},
    {"role": "user", "content": "AT THE FIRST"},
    {"role": "assistant", "content": "AT THE ANSWER", "reasoning_content": "AT THE THOUGHT"},
    {"role": "user", "content": "AT THE SAME"},
    {
        "role": "assistant",
        "content": "AT THE SAME",
        "tool_calls": [
            {"id": str(i), "type": "function", "function": {"name": f"CALL {i}", "arguments": {"path": f"AT {i}"}}} for i in range(2)
        ],
    },
    {"role": "tool", "tool_call_id": "0", "content": "AT THE RESULT"},
    {"role": "user", "content": "AT THE LAST"},
)
TEXT = TEMPLATE.render(Chat(MESSAGES, TOOLS, {}), add_generation_prompt=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("SYSTEM", ("system", "content")),
        ("AT THE ONE", ("tools", "ONE")),
        ("AT THE TWO", ("tools", "TWO")),
        ("FIRST", ("message 1 (user)", "content")),
        ("THOUGHT", ("message 2 (assistant)", "reasoning_content")),
        ("ANSWER", ("message 2 (assistant)", "content")),
        ("AT THE ANSWER", ("message 2 (assistant)", "content")),
        ("assistant\n<think>\nAT THE THOUGHT", ("message 2 (assistant)", "role")),
        ("</think>\n\nAT THE ANSWER", ("message 2 (assistant)", "")),
        ("SAME", ("message 4 (assistant)", "content")),
        ("CALL 0", ("message 4 (assistant)", "tool_calls[0].function.name")),
        ("AT 0", ("message 4 (assistant)", "tool_calls[0].function.arguments")),
        ("AT 1", ("message 4 (assistant)", "tool_calls[1].function.arguments")),
        ("RESULT", ("message 5 (tool)", "content")),
        ("LAST", ("message 6 (user)", "content")),
        ("<|im_start|>assistant\n<think>\n", (REST, "")),
    ],
)
def test_a_character_is_located(words: str, expected: tuple[str, str]) -> None:
    assert PromptLocator(TEMPLATE, Chat(MESSAGES, TOOLS, {})).locate(TEXT.rindex(words), "something else") == expected


def test_reasoning_that_was_left_out_is_the_field_that_differs() -> None:
    """The prompt has no reasoning there; the stored text shows that there was some."""
    char = TEXT.index("<think>\n\n</think>") + len("<think>\n")
    locator = PromptLocator(TEMPLATE, Chat(MESSAGES, TOOLS, {}))
    assert locator.locate(char, "I look at it.\n</think>") == ("message 4 (assistant)", "reasoning_content")


def test_reasoning_that_the_template_leaves_out_of_earlier_turns_is_the_field_that_differs() -> None:
    chat = Chat((USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}, USER), (), {})
    template = Template(STRIPPING, {})
    text = template.render(chat, add_generation_prompt=False)
    assert "Hm." not in text
    assert PromptLocator(template, chat).locate(text.index("Yes."), "<think>Hm.</think>Yes.") == (
        "message 1 (assistant)",
        "reasoning_content",
    )
    assert PromptLocator(template, chat).locate(text.index("Yes."), "No.") == ("message 1 (assistant)", "content")


def test_tokens_without_messages_have_no_location() -> None:
    assert PromptLocator(TEMPLATE, None).locate(3, "") == ("", "")


def test_without_a_system_message_the_first_has_index_0() -> None:
    chat = Chat(MESSAGES[1:], (), {})
    char = TEMPLATE.render(chat, add_generation_prompt=False).index("FIRST")
    assert PromptLocator(TEMPLATE, chat).locate(char, "") == ("message 0 (user)", "content")
