"""Case 09: reasoning tags that an assistant's text names are text."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.rendered import CHAT, MESSAGES, RESPONSES, Answers, case
from tests.talking import tokenizer

CASE = case("09-literal-think-tags")["requests"]
EMPTY = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
OPEN, CLOSE = (tokenizer().encode(tag, tenant="")[0] for tag in ("<think>", "</think>"))


@pytest.mark.parametrize("sent", CASE, ids=[each["path"] for each in CASE])
def test_the_case(server: Answers, sent: dict[str, Any]) -> None:
    (answer,) = (each for each in sent["body"].get("messages", sent["body"].get("input")) if each["role"] == "assistant")
    text = answer["content"] if isinstance(answer["content"], str) else answer["content"][0]["text"]
    assert f"{EMPTY}{text}<|im_end|>" in server.text(sent["path"], sent["body"])
    assert (server.prompt.tokens.count(OPEN), server.prompt.tokens.count(CLOSE)) in [(2, 1), (2, 2)]  # those of the template


def asked(path: str, answer: str, reasoning: str = "") -> dict[str, Any]:
    user = {"role": "user", "content": "q"}
    if path == CHAT:
        said: list[Any] = [{"role": "assistant", "content": answer} | ({"reasoning_content": reasoning} if reasoning else {})]
        return {"max_tokens": 1, "messages": [user, *said, user]}
    if path == MESSAGES:
        thinking = [{"type": "thinking", "thinking": reasoning, "signature": "s"}] if reasoning else []
        return {"max_tokens": 1, "messages": [user, {"role": "assistant", "content": [*thinking, {"type": "text", "text": answer}]}, user]}
    thought = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]}] if reasoning else []
    return {"max_output_tokens": 1, "input": [user, *thought, {"role": "assistant", "content": answer}, user]}


TEXTS = [
    "Close it with </think> here.",
    "</think>",
    "a</think>b</think>c",
    "Open it: <think>",
    "In code:\n```\n<think>\nx\n</think>\n```",
    " </think>\n\n<think>\n",
]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_names_the_tags_is_whole(server: Answers, path: str, text: str) -> None:
    assert f"{EMPTY}{text}<|im_end|>" in server.text(path, asked(path, text))
    after_reasoning = server.text(path, asked(path, text, "Hm, </think> or <think>?"))
    assert f"<think>\nHm, </think> or <think>?\n</think>\n\n{text}<|im_end|>" in after_reasoning
    assert server.prompt.tokens.count(CLOSE) == 1


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_where_reasoning_has_a_field_a_text_that_begins_with_the_tag_is_text(server: Answers, path: str) -> None:
    assert f"{EMPTY}<think>\na</think>b<|im_end|>" in server.text(path, asked(path, "<think>\na</think>b"))


@pytest.mark.parametrize(
    ("content", "rendered"),
    [
        ("<think>\na\n</think>\n\nb", "<think>\na\n</think>\n\nb"),
        ("\n<think>a</think>b", "<think>\na\n</think>\n\nb"),
        ("<think></think>b", "<think>\n\n</think>\n\nb"),
        ("<think>a</think>b</think> and <think>c", "<think>\na\n</think>\n\nb</think> and <think>c"),
        ("<think>never closed", "<think>\n\n</think>\n\n<think>never closed"),
    ],
)
def test_in_chat_reasoning_may_start_the_content(server: Answers, content: str, rendered: str) -> None:
    assert f"<|im_start|>assistant\n{rendered}<|im_end|>" in server.text(CHAT, asked(CHAT, content))
    parts = asked(CHAT, content) | {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [content]}]}
    assert f"<|im_start|>assistant\n{rendered}<|im_end|>" in server.text(CHAT, parts)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_users_tags_are_as_they_were(server: Answers, path: str) -> None:
    body = asked(path, "x")
    body["messages" if "messages" in body else "input"][0] = {"role": "user", "content": "what is <think>a</think>?"}
    assert "user\nwhat is <think>a</think>?<|im_end|>" in server.text(path, body)
