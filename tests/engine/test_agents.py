"""What agents do to a conversation besides going on with it, and what of it is read again: never more than what they changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import Rig, running
from tests.engine.turns import Messages, Turn, say
from tests.text.test_answer_memory import CALL, THOUGHT

SYSTEM = {"role": "system", "content": "You help with files. " * 40}
USERS = [{"role": "user", "content": f"Do step {i}. " * 30} for i in range(4)]
RESULT = {"role": "tool", "content": "It is done. " * 30}
SUFFIX_TOKENS = 8  # that ask for an answer, and what ends a message


class Server:
    """Takes turns, in one process or in one each."""

    def __init__(self, folder: Path, restarts: bool) -> None:
        self._folder, self._restarts = folder, restarts
        self._rig: Rig | None = None

    async def say(self, messages: Messages, text: str = THOUGHT + "Done.", **asked: Any) -> Turn:
        if not self._restarts:
            assert self._rig
            return await say(self._rig, messages, text, **asked)
        async with running(self._folder, forgets=True) as rig:
            return await say(rig, messages, text, **asked)

    async def run(self, scenario: Callable[[Server], Awaitable[None]]) -> None:
        async with running(None if self._restarts else self._folder) as self._rig:
            await scenario(self)


@pytest.fixture(params=[False, True], ids=["in one process", "restarted before each turn"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    return Server(tmp_path / "bank", request.param)


def test_a_compaction_that_is_appended_to_the_last_message_reads_that_message(server: Server) -> None:
    async def scenario(server: Server) -> None:
        messages: Messages = (SYSTEM, USERS[0])
        first = await server.say(messages)
        messages = (*messages, first.message, USERS[1])
        await server.say(messages)
        asked = {"role": "user", "content": f"{USERS[1]['content']}\n\nSummarise what was said."}
        compacted = await server.say((*messages[:-1], asked), THOUGHT + "All is well.")
        assert compacted.report.reused_tokens >= len(first.stored)
        assert compacted.report.miss is not None
        assert (compacted.report.miss.where, compacted.report.miss.field) == ("message 3 (user)", "content")

    asyncio.run(server.run(scenario))


def test_a_compaction_behind_a_result_reads_itself_only(server: Server) -> None:
    async def scenario(server: Server) -> None:
        messages: Messages = (SYSTEM, USERS[0])
        first = await server.say(messages, THOUGHT + CALL)
        messages = (*messages, first.message, RESULT)
        second = await server.say(messages)
        compacted = await server.say((*messages, {"role": "user", "content": "Summarise what was said."}))
        assert compacted.report.reused_tokens >= len(second.prompt) - SUFFIX_TOKENS

    asyncio.run(server.run(scenario))


def test_sub_conversations_between_turns_cost_their_parent_nothing(server: Server) -> None:
    async def scenario(server: Server) -> None:
        messages: Messages = (SYSTEM, USERS[0])
        parent = await server.say(messages, THOUGHT + CALL)
        for i in range(1, 3):  # as agents start them: the same system prompt and tools, another task
            child: Messages = (SYSTEM, {"role": "user", "content": f"Look for files, number {i}. " * 20})
            told = await server.say(child, THOUGHT + CALL)
            assert told.report.reused_tokens > 0
            await server.say((*child, told.message, RESULT))
        after = await server.say((*messages, parent.message, RESULT))
        assert (after.report.reused_tokens, after.report.reason) == (len(parent.stored), "")
        assert after.report.session == parent.report.session

    asyncio.run(server.run(scenario))


def test_a_new_conversation_behind_a_long_system_prompt_is_one_of_its_own(server: Server) -> None:
    async def scenario(server: Server) -> None:
        system = {"role": "system", "content": "You help with files. " * 200}
        asked, other = ((system, {"role": "user", "content": text}) for text in ("Mend the test.", "What was changed?"))
        first = await server.say(asked)
        beside = await server.say(other)
        assert beside.report.reused_tokens > len(first.stored) / 2
        assert beside.report.session != first.report.session
        again = await server.say(asked)
        assert again.report.session == first.report.session
        after = await server.say((*asked, again.message, USERS[0]))
        assert (after.report.session, after.report.reason) == (first.report.session, "")

    asyncio.run(server.run(scenario))


def test_a_client_that_drops_reasoning_reads_the_last_answer_again_and_no_more(server: Server) -> None:
    async def scenario(server: Server) -> None:
        messages: Messages = (SYSTEM, USERS[0])
        before = await server.say(messages)
        for user in USERS[1:]:
            without = {name: value for name, value in before.message.items() if name != "reasoning_content"}
            messages = (*messages, without, user)
            told = await server.say(messages)
            assert len(before.prompt) - SUFFIX_TOKENS <= told.report.reused_tokens <= len(before.prompt)
            assert told.report.miss is not None
            assert told.report.miss.field == "reasoning_content"
            assert told.report.miss.where == f"message {len(messages) - 2} (assistant)"
            before = told

    asyncio.run(server.run(scenario))
