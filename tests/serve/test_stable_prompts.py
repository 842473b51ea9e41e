"""The prompt depends on the conversation alone: not on how a client writes it, on its bookkeeping, or on the process."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.rendering import SentRequest, tokens_elsewhere, tokens_of
from tests.serve.test_openai_responses import AGENTS, FUNCTION, PATCH

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": ["x", "y"]}}}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CACHE_CONTROL = {"cache_control": {"type": "ephemeral"}}


def called(id: str, content: Any, **more: Any) -> list[dict[str, Any]]:
    """A turn of a chat with a call."""
    call = {"id": id, "type": "function", "function": {"name": "read", "arguments": '{"z": "1", "a": "x"}'}}
    result = {"role": "tool", "tool_call_id": id, "content": content}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, result | more, {"role": "user", "content": content, **more}]


def used(id: str, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """The same turn in messages."""
    use = {"type": "tool_use", "id": id, "name": "read", "input": {"z": "1", "a": "x"}} | snapshot
    result = {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": "ok"} | snapshot]} | snapshot
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result, {"type": "text", "text": "ok"} | snapshot]}]


def items(call_id: str, **more: Any) -> list[dict[str, Any]]:
    """The same turn in items."""
    call = {"type": "function_call", "call_id": call_id, "name": "read", "arguments": '{"z": "1", "a": "x"}'}
    result = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
    return [{"role": "user", "content": "hello"}, call | more, result | more]


USER = {"role": "user", "content": "hello"}
DECLARED = {"type": "function", "function": {"name": "read", "parameters": SCHEMA}}
TOOL = {"name": "read", "input_schema": SCHEMA}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.ae8;"}
SYSTEM = {"type": "text", "text": "You help."}
SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "chat": (
        CHAT,
        {"messages": [USER, *called("a", "ok")], "tools": [DECLARED]},
        {
            "user": "me",
            "tools": [DECLARED],
            "metadata": {"b": 1},
            "messages": [USER, *called("b7", [{"type": "text", "text": "ok"} | CACHE_CONTROL], name="x")],
        },
    ),
    "messages": (
        MESSAGES,
        {"max_tokens": 5, "system": "You help.", "messages": [USER, *used("a", {})], "tools": [TOOL]},
        {
            "tools": [TOOL | CACHE_CONTROL],
            "messages": [USER, *used("toolu_b", CACHE_CONTROL)],
            "system": [BILLING, SYSTEM | CACHE_CONTROL],
            "metadata": {"user_id": "me"},
            "max_tokens": 5,
        },
    ),
    "responses": (
        RESPONSES,
        {"input": items("a"), "tools": [FUNCTION]},
        {
            "tools": [FUNCTION],
            "prompt_cache_key": "k",
            "client_metadata": {"b": 1},
            "store": False,
            "input": items("b", id="fc_1", status="completed"),
        },
    ),
}


@pytest.mark.parametrize(("path", "body", "other"), SAME.values(), ids=SAME)
def test_bookkeeping_never_reaches_the_prompt(path: str, body: dict[str, Any], other: dict[str, Any]) -> None:
    assert tokens_of((path, body)) == tokens_of((path, other))


def test_every_process_computes_the_same_prompt() -> None:
    many: list[SentRequest] = [(path, body) for path, body, _ in SAME.values()]
    many.append((RESPONSES, {"input": items("a"), "tools": [FUNCTION, PATCH, AGENTS], "reasoning": {"effort": "low"}}))
    assert tokens_elsewhere(many) == [tokens_of(each) for each in many]
