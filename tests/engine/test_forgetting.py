"""A removed conversation takes its own answers out of memory, and no other conversation's: without a disk nothing could bring them back."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.engines import Rig, running
from tests.engine.turns import Messages, Turn, take_turn
from tests.text.test_answer_memory import CALL, REWRITTEN, THOUGHT, with_arguments

USER = {"role": "user", "content": "Write it."}
OTHER = {"role": "user", "content": "Write another."}
RESULT = {"role": "tool", "content": "done"}
STAYING = {
    "the same tenant's": ("", "mine", OTHER),
    "another tenant's": ("bob", "mine", OTHER),
    "another tenant's of the same id": ("bob", "gone", OTHER),
    "one that had the same answer": ("", "mine", USER),
}


async def answered(rig: Rig, message: dict[str, str], tenant: str, session: str) -> Turn:
    return await take_turn(rig, (message,), THOUGHT + CALL, tenant=tenant, session=session)


def continued(message: dict[str, str], turn: Turn) -> Messages:
    """The next turn's messages, in which the client writes the arguments of the call otherwise."""
    return message, with_arguments(turn.message, REWRITTEN["in another order"]), RESULT


@pytest.mark.parametrize(("tenant", "session", "message"), STAYING.values(), ids=STAYING)
@pytest.mark.parametrize("is_first", [True, False])
def test_removing_a_conversation_costs_no_other_its_reuse(tenant: str, session: str, message: dict[str, str], is_first: bool) -> None:
    async def scenario() -> None:
        async with running(None, forgets=True) as rig:
            if is_first:
                mine = await answered(rig, message, tenant, session)
            await answered(rig, USER, "", "gone")
            if not is_first:
                mine = await answered(rig, message, tenant, session)
            await rig.engine.sessions.remove("", "gone")
            served = await take_turn(rig, continued(message, mine), tenant=tenant, session=session)
            assert served.report.reused_tokens == len(mine.stored)

    asyncio.run(scenario())


def test_wiping_a_tenant_costs_no_other_its_reuse() -> None:
    async def scenario() -> None:
        async with running(None, forgets=True) as rig:
            mine, gone = await answered(rig, USER, "bob", "one"), await answered(rig, USER, "", "one")
            await rig.engine.sessions.wipe("")
            assert (await take_turn(rig, continued(USER, mine), tenant="bob", session="one")).report.reused_tokens == len(mine.stored)
            assert (await take_turn(rig, continued(USER, gone))).prompt[: len(gone.stored)] != gone.stored

    asyncio.run(scenario())


def test_a_removed_conversations_answers_are_forgotten() -> None:
    async def scenario() -> None:
        async with running(None, forgets=True) as rig:
            gone = await answered(rig, USER, "", "gone")
            await answered(rig, OTHER, "", "mine")
            await rig.engine.sessions.remove("", "gone")
            served = await take_turn(rig, continued(USER, gone))
            assert served.prompt[: len(gone.stored)] != gone.stored

    asyncio.run(scenario())
