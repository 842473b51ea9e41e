"""How a conversation begins, in a few words for people. Pure; knows no tokenizer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

from forerun.values import ArchivedConversation, Chat, Prompt, TextPrompt

TITLE_CHARS = 60
TITLE_TOKENS = 64  # that hold so many characters
_HEAD_CHARS = 1_000  # of a text, in which the first words are
_TAG = re.compile(r"\s*<([\w-]+)>")


def title_of(prompt: Prompt, first_text: Callable[[], str]) -> str:
    """The first words of the first thing that a user said; of a raw prompt its first words. first_text: of a prompt of tokens alone."""
    match prompt:
        case Chat(messages):
            contents = (message.get("content") for message in messages if message["role"] == "user")
            said = (_without_added(content) for content in contents if isinstance(content, str))
            return next((title for text in said if (title := _shortened(text))), "")
        case TextPrompt(text):
            return _shortened(text)
        case ArchivedConversation():
            return ""
        case _:
            return _shortened(first_text())


def _without_added(text: str) -> str:
    """Without what agents put before a message, each in a tag of its own."""
    start = 0
    while (tag := _TAG.match(text, start)) and (end := text.find(f"</{tag[1]}>", tag.end())) >= 0:
        start = end + len(tag[1]) + 3
    return text[start : start + _HEAD_CHARS]


def _shortened(text: str) -> str:
    words = "".join(char if char.isprintable() else " " for char in text[:_HEAD_CHARS])
    short = textwrap.shorten(words, TITLE_CHARS, placeholder="…")
    return f"{words.split()[0][: TITLE_CHARS - 1]}…" if short == "…" else short
