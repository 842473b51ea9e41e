"""A conversation's title: the first words that its user said."""

from __future__ import annotations

import pytest

from forerun.text.title import TITLE_CHARS, title_of
from forerun.values import ArchivedConversation, Chat, Prompt, TextPrompt, TokenPrompt


def said(*contents: object) -> Chat:
    return Chat(({"role": "system", "content": "You are."}, *({"role": "user", "content": each} for each in contents)), (), {})


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        (said("Fix the parser", "and then?"), "Fix the parser"),
        (said("  Fix\n\tthe\x1b[31m parser\n"), "Fix the [31m parser"),
        (said("<system-reminder>\nToday is <b>x</b>.\n</system-reminder>\nFix it"), "Fix it"),
        (said("<environment_context>\n<cwd>/x</cwd>\n</environment_context>", "Fix it"), "Fix it"),
        (said("a < b and b > c"), "a < b and b > c"),
        (said("", "   ", "Fix it"), "Fix it"),
        (said(None, [{"type": "text"}], "Fix it"), "Fix it"),
        (said(), ""),
        (said("word " * 100), "word " * 11 + "word…"),
        (said("x" * 100), "x" * (TITLE_CHARS - 1) + "…"),
        (TextPrompt("def f():\n    return"), "def f(): return"),
        (TokenPrompt((1, 2)), "decoded text"),
        (ArchivedConversation((1, 2), (2,), 1), ""),
    ],
)
def test_titles(prompt: Prompt, title: str) -> None:
    found = title_of(prompt, lambda: "decoded text")
    assert found == title
    assert len(found) <= TITLE_CHARS
