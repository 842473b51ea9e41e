"""What agents do to a conversation besides continuing it: no more is computed again than what they changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import Rig, events, running
from tests.engine.turns import Messages, Turn, take_turn
from tests.text.test_answer_memory import CALL, THOUGHT
from tests.waiting import until

from forerun.engine.engine import Run
from forerun.values import Done

SYSTEM = {"role": "system", "content": "You help with files. " * 40}
USERS = [{"role": "user", "content": f"Do step {i}. " * 30} for i in range(4)]
RESULT = {"role": "tool", "content": "It is done. " * 30}
SUFFIX_TOKENS = 8  # that ask for an answer, and what ends a message


class Server:
    """Takes turns, on one engine or on a new one for each."""

    def __init__(self, folder: Path, restarts: bool) -> None:
        self._folder, self._restarts = folder, restarts
        self._rig: Rig | None = None

    async def take_turn(self, messages: Messages, text: str = THOUGHT + "Done.", **fields: Any) -> Turn:
        if not self._restarts:
            assert self._rig
            return await take_turn(self._rig, messages, text, **fields)
        async with running(self._folder, forgets=True) as rig:
            return await take_turn(rig, messages, text, **fields)

    async def run(self, scenario: Callable[[Server], Awaitable[None]]) -> None:
        async with running(None if self._restarts else self._folder) as self._rig:
            await scenario(self)


@pytest.fixture(params=[False, True], ids=["in one process", "restarted before each turn"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    return Server(tmp_path / "bank", request.param)


def test_a_compaction_appended_to_the_last_message_computes_that_message(server: Server) -> None:
    async def scenario(server: Server) -> None:
        messages: Messages = (SYSTEM, USERS[0])
        first = await server.take_turn(messages)
        messages = (*messages, first.message, USERS[1])
        await server.take_turn(messages)
        asked = {"role": "user", "content": f"{USERS[1]['content']}\n\nSummarise the conversation."}
        compacted = await server.take_turn((*messages[:-1], asked), THOUGHT + "All is well.")
        assert compacted.report.reused_tokens >= len(first.stored)
        assert compacted.report.miss is not None
        assert (compacted.report.miss.where, compacted.report.miss.field) == ("message 3 (user)", "content")

    asyncio.run(server.run(scenario))


def test_a_compaction_after_a_result_computes_only_itself(server: Server) -> None:
    async def scenario(server: Server) -> None:
        messages: Messages = (SYSTEM, USERS[0])
        first = await server.take_turn(messages, THOUGHT + CALL)
        messages = (*messages, first.message, RESULT)
        second = await server.take_turn(messages)
        compacted = await server.take_turn((*messages, {"role": "user", "content": "Summarise the conversation."}))
        assert compacted.report.reused_tokens >= len(second.prompt) - SUFFIX_TOKENS

    asyncio.run(server.run(scenario))


def test_sub_conversations_between_turns_cost_their_parent_no_reuse(server: Server) -> None:
    async def scenario(server: Server) -> None:
        messages: Messages = (SYSTEM, USERS[0])
        parent = await server.take_turn(messages, THOUGHT + CALL)
        for i in range(1, 3):  # as agents start them: the same system prompt and tools, another task
            child: Messages = (SYSTEM, {"role": "user", "content": f"Look for files, number {i}. " * 20})
            served = await server.take_turn(child, THOUGHT + CALL)
            assert served.report.reused_tokens > 0
            await server.take_turn((*child, served.message, RESULT))
        after = await server.take_turn((*messages, parent.message, RESULT))
        assert (after.report.reused_tokens, after.report.reason) == (len(parent.stored), "")
        assert after.report.session == parent.report.session

    asyncio.run(server.run(scenario))


def test_a_new_conversation_after_a_shared_system_prompt_is_a_separate_session(server: Server) -> None:
    async def scenario(server: Server) -> None:
        system = {"role": "system", "content": "You help with files. " * 200}
        asked, other = ((system, {"role": "user", "content": text}) for text in ("Mend the test.", "What was changed?"))
        first = await server.take_turn(asked)
        another = await server.take_turn(other)
        assert another.report.reused_tokens > len(first.stored) / 2
        assert another.report.session != first.report.session
        again = await server.take_turn(asked)
        assert again.report.session == first.report.session
        after = await server.take_turn((*asked, again.message, USERS[0]))
        assert (after.report.session, after.report.reason) == (first.report.session, "")

    asyncio.run(server.run(scenario))


def test_a_client_that_drops_reasoning_recomputes_the_last_answer_only(server: Server) -> None:
    async def scenario(server: Server) -> None:
        messages: Messages = (SYSTEM, USERS[0])
        before = await server.take_turn(messages)
        for user in USERS[1:]:
            without = {name: value for name, value in before.message.items() if name != "reasoning_content"}
            messages = (*messages, without, user)
            served = await server.take_turn(messages)
            assert len(before.prompt) - SUFFIX_TOKENS <= served.report.reused_tokens <= len(before.prompt)
            assert served.report.miss is not None
            assert served.report.miss.field == "reasoning_content"
            assert served.report.miss.where == f"message {len(messages) - 2} (assistant)"
            before = served

    asyncio.run(server.run(scenario))


PROMPT = list(range(400))
LONGER = list(range(500))


@pytest.mark.parametrize(
    ("first", "second", "is_apart"), [("one", "two", True), ("one", "one", False), ("", "two", False), ("one", "", False)]
)
def test_an_agent_that_sends_what_another_has_sent_does_not_take_its_conversation(first: str, second: str, is_apart: bool) -> None:
    """A prompt again is an edit of the last turn, which cuts its answer off; unless it is another agent's, which forks."""

    async def scenario() -> None:
        async with running() as rig:
            await ended(await rig.ask(PROMPT, agent=first, max_tokens=1))
            begun = await ended(await rig.ask(LONGER, agent=first))
            again = await ended(await rig.ask(LONGER, agent=second, max_tokens=1))
            assert again.report.reused_tokens == len(LONGER)
            assert (again.report.session != begun.report.session, again.report.forked_from != "") == (is_apart, is_apart)
            await until(lambda: not rig.engine.worker.is_storing)
            lengths = [live.cache.length for live in rig.engine.model.bank._live]
            assert lengths == ([len(LONGER) + begun.usage.completion_tokens - 1] if is_apart else []) + [len(LONGER)]

    asyncio.run(scenario())


def test_a_session_that_is_named_is_continued_by_any_agent() -> None:
    async def scenario() -> None:
        async with running() as rig:
            await ended(await rig.ask(PROMPT, agent="one", session="mine", max_tokens=1))
            done = await ended(await rig.ask(LONGER, agent="two", session="mine"))
            assert (done.report.reused_tokens, done.report.forked_from) == (len(PROMPT), "")

    asyncio.run(scenario())


def test_agents_that_share_a_beginning_continue_their_own_conversations_whether_they_are_named_or_not() -> None:
    """What differs is found by content: no id of a parent or a sub-agent could change whose conversation it is."""

    async def reuses(agents: tuple[str, str]) -> list[tuple[int, bool]]:
        found = []
        async with running() as rig:
            prompts = {number: [*PROMPT, *range(1000 * (number + 1), 1000 * (number + 1) + 100)] for number in (0, 1)}
            for _ in range(3):
                for number, prompt in prompts.items():
                    run = await rig.ask(prompt, agent=agents[number])
                    done = await ended(run)
                    found.append((done.report.reused_tokens, bool(done.report.forked_from)))
                    prompts[number] = [*prompt, number, 7, 9, 11]
        return found

    assert asyncio.run(reuses(("", ""))) == asyncio.run(reuses(("parent", "parent/child")))


async def ended(run: Run) -> Done:
    done = (await events(run))[-1]
    assert isinstance(done, Done)
    return done
