"""A removed conversation takes its own answers out of memory, and no other conversation's: without a disk nothing could bring them back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.engine.engines import Rig, events, running
from tests.engine.turns import Messages, Turn, take_turn
from tests.text.test_answer_memory import CALL, REWRITTEN, THOUGHT, with_arguments
from tests.waiting import until

from forerun.engine.engine import Run
from forerun.values import Done

USER = {"role": "user", "content": "Write it."}
OTHER = {"role": "user", "content": "Write another."}
RESULT = {"role": "tool", "content": "done"}
PROMPT, STRANGER = list(range(400)), list(range(1000, 1400))
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


REMOVALS: dict[str, tuple[str | None, Callable[[Rig, str], Awaitable[object]]]] = {
    "its conversation": (None, lambda rig, id: rig.engine.sessions.remove("", id)),
    "the session that it names": ("mine", lambda rig, id: rig.engine.sessions.remove("", id)),
    "all": (None, lambda rig, id: rig.engine.sessions.wipe("")),
}


@pytest.mark.parametrize("is_on_disk", [False, True])
@pytest.mark.parametrize(("session", "remove"), REMOVALS.values(), ids=REMOVALS)
def test_a_turn_that_waits_while_its_conversation_is_removed_is_not_stored(
    session: str | None, remove: Callable[[Rig, str], Awaitable[object]], is_on_disk: bool, tmp_path: Path
) -> None:
    """It was sent before the removal, and would bring back what was removed."""

    async def scenario() -> None:
        async with running(tmp_path if is_on_disk else None, max_running=1, **({"ram_limit_bytes": 0} if is_on_disk else {})) as rig:
            first = await ended(await rig.ask(PROMPT, session=session))
            await until(lambda: rig.engine.health().bank.pending_writes == 0)
            rig.gate.hold()
            blocker = await rig.ask(STRANGER, bank="bypass")
            waiting, other = await rig.ask([*PROMPT, 7], session=session), await rig.ask(STRANGER, session="other")
            removal = asyncio.create_task(remove(rig, first.report.session))  # type: ignore[arg-type]
            while not removal.done():
                await rig.gate.let(1, rig.is_idle)
                await asyncio.sleep(0.01)
            await removal
            rig.gate.open()
            assert [(await ended(run)).finish for run in (blocker, waiting, other)] == ["length"] * 3
            await until(lambda: not rig.engine.worker.is_storing)
            stored = [each.id for each in await rig.engine.sessions.all("", 9)]
            assert stored == ([] if remove is REMOVALS["all"][1] else ["other"])

    asyncio.run(scenario())


async def ended(run: Run) -> Done:
    done = (await events(run))[-1]
    assert isinstance(done, Done)
    return done
