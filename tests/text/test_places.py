"""Which part of a conversation a place in its text belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.models.load import DEMO_MODEL
from forerun.text.places import REST, Places
from forerun.text.template import Template
from forerun.values import Chat

TEMPLATE = Template.load(DEMO_MODEL)
TOOL = {"type": "function", "function": {"name": "look", "description": "AT THE TOOL", "parameters": {"type": "object"}}}
MESSAGES: tuple[dict[str, Any], ...] = (
    {"role": "system", "content": "AT THE SYSTEM"},
    {"role": "user", "content": "AT THE FIRST"},
    {"role": "assistant", "content": "AT THE ANSWER", "reasoning_content": "AT THE THOUGHT"},
    {"role": "user", "content": "AT THE LAST"},
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("SYSTEM", "system"),
        ("TOOL", "tools"),
        ("FIRST", "message 1 (user)"),
        ("THOUGHT", "message 2 (assistant)"),
        ("ANSWER", "message 2 (assistant)"),
        ("LAST", "message 3 (user)"),
        ("<|im_start|>assistant\n<think>\n", REST),
    ],
)
def test_a_place_is_named(words: str, expected: str) -> None:
    chat = Chat(MESSAGES, (TOOL,), {})
    text = TEMPLATE.render(chat, add_generation_prompt=True)
    assert Places(TEMPLATE, chat).of(text.rindex(words)) == expected


def test_tokens_without_messages_have_no_places() -> None:
    assert Places(TEMPLATE, None).of(3) == ""


def test_without_a_system_message_the_first_is_number_0() -> None:
    chat = Chat(MESSAGES[1:], (), {})
    assert Places(TEMPLATE, chat).of(TEMPLATE.render(chat, add_generation_prompt=False).index("FIRST")) == "message 0 (user)"
