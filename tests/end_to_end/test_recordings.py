"""Recorded conversations in the Anthropic and Responses dialects: all are served, and a prompt that only grew is reused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from tests.end_to_end.replay import Player, Recorded, ReplayedRequest, check_changed, is_enough, of_client, of_run, pairs
from tests.serve.asking import values
from tests.waiting import LIMIT_S

from forerun.bank.policy import APART_TOKENS
from forerun.text.prompt_borders import WORD_TOKENS

RUNS = ["claude-code-print", "claude-code-echo", "codex-freeform", "codex-echo", "pi-responses"]
LONG_RUNS = ["claude-code-terminal", "claude-code-400", "codex", "opencode-messages"]
# Events that these clients need, see README.md of the recordings.
NEEDED = {
    "/v1/messages": {"message_start", "content_block_start", "content_block_stop", "message_stop"},
    "/v1/responses": {"response.output_item.done", "response.completed"},
}
TYPES: dict[str, TypeAdapter[Any]] = {"/v1/messages": TypeAdapter(RawMessageStreamEvent), "/v1/responses": TypeAdapter(ResponseStreamEvent)}


async def play(run: str) -> dict[str, ReplayedRequest]:
    player = Player()
    try:
        return {recorded.file: await player.play(recorded) for recorded in of_run(run)}
    finally:
        await player.engine.close(LIMIT_S)


def calls_of(events: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Names and arguments of the calls in a stream, as its client assembles them."""
    calls: list[tuple[str, Any]] = []
    for event in events:
        match event:
            case {"content_block": {"type": "tool_use", "name": name}}:
                calls.append((name, ""))
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
            case {"type": "response.output_item.done", "item": {"type": "function_call", "name": name, "arguments": text}}:
                calls.append((name, text))
            case {"type": "response.output_item.done", "item": {"type": "custom_tool_call", "name": name, "input": text}}:
                calls.append((name, json.dumps({"input": text})))
    return [(name, json.loads(text)) for name, text in calls]


def text_of(events: list[dict[str, Any]]) -> str:
    """The text in a stream of the Anthropic dialect."""
    return "".join(event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta")


def check(served: ReplayedRequest) -> None:
    recorded, path = served.recorded, served.recorded.path.partition("?")[0]
    if recorded.method == "HEAD":
        assert served.response.status_code == 404
    else:
        assert served.response.status_code == 200, served.response.text
        events = values(served.response.text)
        assert {event["type"] for event in events} >= NEEDED[path]
        for event in events:
            if event["type"] != "ping":
                TYPES[path].validate_python(event)
        assert calls_of(events) == recorded.calls
        if "format" in json.loads(recorded.body).get("output_config", {}):  # Claude Code's title
            assert json.loads(text_of(events)).keys() == {"title"}


@pytest.mark.parametrize("run", [*RUNS, *(pytest.param(run, marks=pytest.mark.long) for run in LONG_RUNS)])
def test_a_run_is_served_and_only_new_or_changed_tokens_are_computed(run: str) -> None:
    played = asyncio.run(play(run))
    order = list(played.values())
    for served in order:
        check(served)
    for pair in pairs(run):
        before, after = played[pair["from"]], played[pair["to"]]
        if pair["append_only"]:
            assert is_enough(before, after), (pair, after.reused_tokens, before.prompt_tokens, after.reason)
        elif after.prompt:
            check_changed(after, order[: order.index(after)])


async def reused(*requests: Recorded) -> list[ReplayedRequest]:
    player = Player()
    try:
        return [await player.play(request) for request in requests]
    finally:
        await player.engine.close(LIMIT_S)


def without_tools(recorded: Recorded) -> Recorded:
    """The same request as a compaction that drops the tools."""
    body = {name: value for name, value in json.loads(recorded.body).items() if name not in ("tools", "tool_choice")}
    return replace(recorded, body=json.dumps(body, ensure_ascii=False).encode())


def num_common(one: ReplayedRequest, other: ReplayedRequest) -> int:
    assert one.prompt
    assert other.prompt
    return next(i for i, (a, b) in enumerate(zip(one.prompt.tokens, other.prompt.tokens, strict=False)) if a != b)


def test_a_sub_agent_with_fewer_tools_reuses_the_system_text_and_the_tools_that_it_shares() -> None:
    main, sub = (of_client("codex")[f"codex/00{number}-request.json"] for number in (1, 5))
    first, second = asyncio.run(reused(main, sub))
    shared = num_common(first, second)
    assert shared == 7752
    assert shared - APART_TOKENS - WORD_TOKENS <= second.reused_tokens <= shared


@pytest.mark.parametrize(("file", "system_tokens"), [("codex/001-request.json", 6346), ("opencode/002-request.json", 3637)])
def test_a_compaction_that_drops_the_tools_reuses_the_system_text(file: str, system_tokens: int) -> None:
    main = of_client(file.split("/", maxsplit=1)[0])[file]
    first, second = asyncio.run(reused(main, without_tools(main)))
    assert num_common(first, second) == system_tokens
    assert system_tokens - WORD_TOKENS <= second.reused_tokens <= system_tokens
