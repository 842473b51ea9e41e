"""Case 16: histories with nulls and with parts of other dialects."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.rendered import CHAT, MESSAGES, RESPONSES, Answers, case

CASE = case("16-strict-history")["requests"]
WORDS = [
    "<tool_response>\n\n</tool_response>",
    '{"name": "f", "arguments": {}}',
    "</think>\n\nno<|im_end|>",
    "<think>\na\n</think>\n\nt<|im_end|>",
    "user\nab<|im_end|>",
    "<tool_response>\n\n</tool_response>",
    "</think>\n\n<|im_end|>",
]
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(("sent", "words"), list(zip(CASE, WORDS, strict=True)))
def test_the_case(server: Answers, sent: dict[str, Any], words: str) -> None:
    assert words in server.text(sent["path"], sent["body"])


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": None}}
CUSTOM = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
VARIANTS: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "refusal in a field": (CHAT, [{"role": "assistant", "content": None, "refusal": "no"}], "</think>\n\nno<|im_end|>"),
    "neither content nor calls": (CHAT, [{"role": "assistant"}], "</think>\n\n<|im_end|>"),
    "a result without content": (
        CHAT,
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c"}],
        '"arguments": {}',
    ),
    "a custom call": (CHAT, [{"role": "assistant", "tool_calls": [CUSTOM]}], '{"name": "patch", "arguments": {"input": "*** Begin"}}'),
    "a call from before there were tools": (
        CHAT,
        [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}],
        '{"name": "f", "arguments": {"a": 1}}',
    ),
    "a result from before there were tools": (
        CHAT,
        [{"role": "assistant", "function_call": {"name": "f"}}, {"role": "function", "name": "f", "content": "r"}],
        "<tool_response>\nr\n</tool_response>",
    ),
    "reasoning in parts": (
        CHAT,
        [
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}, {"type": "text", "text": "t"}],
            }
        ],
        "<think>\na\n</think>\n\nt<|im_end|>",
    ),
    "hidden reasoning": (
        CHAT,
        [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, "t"]}],
        "</think>\n\nt<|im_end|>",
    ),
    "null content": (MESSAGES, [{"role": "assistant", "content": None}], "</think>\n\n<|im_end|>"),
    "a null text": (MESSAGES, [{"role": "assistant", "content": [{"type": "text", "text": None}, "t"]}], "</think>\n\nt<|im_end|>"),
    "null reasoning": (
        MESSAGES,
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": None}, None, "t"]}],
        "\n\nt<|im_end|>",
    ),
    "a refusal": (MESSAGES, [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], "</think>\n\nno<|im_end|>"),
    "a call without input": (
        MESSAGES,
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]}],
        '"arguments": {}',
    ),
    "a null result": (
        MESSAGES,
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": None}]}],
        "<tool_response>\n\n</tool_response>",
    ),
    "a call without arguments": (RESPONSES, [{"type": "function_call", "call_id": "c", "name": "f"}], '"arguments": {}'),
    "a custom call without input": (RESPONSES, [{"type": "custom_tool_call", "call_id": "c", "name": "f"}], '"arguments": {"input": ""}'),
    "a result without output": (RESPONSES, [{"type": "function_call_output", "call_id": "c"}], "<tool_response>\n\n</tool_response>"),
    "no type": (RESPONSES, [{"type": None, "role": "assistant", "content": ["a", None, "b"]}], "</think>\n\nab<|im_end|>"),
    "null reasoning of responses": (RESPONSES, [{"type": "reasoning", "summary": None, "content": None}], "</think>\n\n<|im_end|>"),
    "reasoning in a part": (
        RESPONSES,
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}, {"type": "output_text", "text": "t"}]}],
        "<think>\na\n</think>\n\nt<|im_end|>",
    ),
}


@pytest.mark.parametrize(("path", "more", "words"), VARIANTS.values(), ids=VARIANTS)
def test_variants(server: Answers, path: str, more: list[dict[str, Any]], words: str) -> None:
    turns = [USER, *more, USER]
    body = {"max_output_tokens": 4, "input": turns} if path == RESPONSES else {"max_tokens": 4, "messages": turns}
    assert words in server.text(path, body)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_question_without_content_is_still_refused(server: Answers, path: str) -> None:
    turns = [{"role": "user"}]
    assert server.post(path, {"input": turns} if path == RESPONSES else {"max_tokens": 4, "messages": turns}).status_code == 400
