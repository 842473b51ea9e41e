"""Recorded conversations in the chat dialect: all are served, their calls arrive, and a prompt that only grew is reused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.end_to_end.replay import Player, Recorded, ReplayedRequest, check_changed, of_run, pairs
from tests.serve.asking import values
from tests.waiting import LIMIT_S

RUNS = ["opencode-chat", "opencode-echo", "pi-chat", "aider-diff", "python-sdk"]
LONG_RUNS = ["opencode-chat-compact", "pi-chat-compact"]
CHAT = "/v1/chat/completions"
# The client renames the unknown tool to `invalid` when it sends the answer back, with other arguments: a different answer.
RENAMED = {"opencode/061-request.json"}


async def play(requests: list[Recorded]) -> dict[str, ReplayedRequest]:
    player = Player()
    try:
        return {recorded.file: await player.play(recorded) for recorded in requests}
    finally:
        await player.engine.close(LIMIT_S)


def message_of(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], str | None]:
    """The message and its finish reason, assembled from deltas as clients do it, calls by their index."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": {}}
    finish = None
    for chunk in chunks:
        for choice in ChatCompletionChunk.model_validate(chunk, strict=True).choices:
            finish = choice.finish_reason or finish
            message["content"] += choice.delta.content or ""
            message["reasoning_content"] += (choice.delta.model_extra or {}).get("reasoning_content", "")
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                merged = message["calls"].setdefault(call.index, [call.id, call.function.name, ""])
                merged[2] += call.function.arguments or ""
    return message, finish


def answer_of(served: ReplayedRequest) -> tuple[dict[str, Any], str | None]:
    if "event-stream" in served.response.headers["content-type"]:
        assert served.response.text.endswith("data: [DONE]\n\n")
        return message_of(values(served.response.text))
    choice = ChatCompletion.model_validate(served.response.json(), strict=True).choices[0]
    calls = enumerate(choice.message.tool_calls or [])
    extra = (choice.message.model_extra or {}).get("reasoning_content", "")
    message = {"content": choice.message.content or "", "reasoning_content": extra}
    return message | {
        "calls": {i: [c.id, c.function.name, c.function.arguments] for i, c in calls if c.type == "function"}
    }, choice.finish_reason


def check(served: ReplayedRequest) -> None:
    """The answer is what the script wrote."""
    assert served.response.status_code == 200, served.response.text
    message, finish = answer_of(served)
    script = served.recorded.answer
    takes_calls = bool(json.loads(served.recorded.body).get("tools"))
    assert [(name, json.loads(text)) for _, name, text in message["calls"].values()] == (served.recorded.calls if takes_calls else [])
    assert finish == ("tool_calls" if message["calls"] else "stop")
    assert message["content"].strip() == script.get("text", "" if message["calls"] else "I see.").strip()
    assert message["reasoning_content"].strip() == script.get("reasoning", "").strip()


@pytest.mark.parametrize("run", [*RUNS, *(pytest.param(run, marks=pytest.mark.long) for run in LONG_RUNS)])
def test_a_run_is_served_and_only_new_or_changed_tokens_are_computed(run: str) -> None:
    played = asyncio.run(play([recorded for recorded in of_run(run) if recorded.path == CHAT]))
    assert played
    for served in played.values():
        check(served)
    for pair in pairs(run):
        if pair["from"] in played and pair["to"] in played:
            compare(pair, played[pair["from"]], played[pair["to"]], list(played.values()))


def compare(pair: dict[str, Any], before: ReplayedRequest, after: ReplayedRequest, played: list[ReplayedRequest]) -> None:
    """A prompt that only grew is reused, its last answer too; a changed one up to the last snapshot before the change."""
    if not pair["append_only"]:
        if after.prompt:
            check_changed(after, played[: played.index(after)])
    elif pair["to"] in RENAMED:
        assert after.reused_tokens >= before.prompt_tokens
    else:
        assert (after.reason, after.reused_tokens > before.prompt_tokens) == ("", True), pair


@pytest.mark.long
@pytest.mark.parametrize("run", ["opencode-echo", "pi-chat", *LONG_RUNS])
def test_a_run_continues_after_a_restart_with_the_same_reuse(run: str, tmp_path: Path) -> None:
    requests = [recorded for recorded in of_run(run) if recorded.path == CHAT]
    played = asyncio.run(play_with_a_restart(requests, tmp_path / "bank"))
    for pair in pairs(run):
        if pair["from"] in played and pair["to"] in played:
            compare(pair, played[pair["from"]], played[pair["to"]], list(played.values()))


async def play_with_a_restart(requests: list[Recorded], folder: Path) -> dict[str, ReplayedRequest]:
    half, played = len(requests) // 2, dict[str, ReplayedRequest]()
    player = Player(folder)
    for i, recorded in enumerate(requests):
        if i == half:
            await player.engine.close(20.0)
            player = player.restarted(folder)
        played[recorded.file] = await player.play(recorded)
    await player.engine.close(20.0)
    return played
