"""Recorded conversations of several clients, replayed at the same time: each reuses what it reuses when it is replayed alone."""

from __future__ import annotations

import asyncio

import pytest
from tests.end_to_end.replay import Player, ReplayedRequest, of_run
from tests.waiting import LIMIT_S

from forerun.values import Health

# The clients, and the smallest run of each dialect: their system texts differ, so that none can reuse another's.
RUNS = ("claude-code-echo", "codex-echo", "opencode-echo")
LONG_RUNS = ("claude-code-print", "codex-freeform", "opencode-chat", "pi-responses", "aider-diff")


async def replay(*runs: str) -> tuple[dict[str, list[ReplayedRequest]], int]:
    """The requests of each run, in their order, and all runs at once; and how many requests ran at once at most."""
    player, most = Player(), [0]
    health = player.engine.health

    def noted() -> Health:
        found = health()
        most[0] = max(most[0], found.running)
        return found

    async def one(run: str) -> list[ReplayedRequest]:
        served = []
        for recorded in of_run(run):
            task = asyncio.create_task(player.play(recorded))
            while not task.done():
                noted()
                await asyncio.wait([task], timeout=0.01)
            served.append(task.result())
        return served

    try:
        return dict(zip(runs, await asyncio.gather(*[one(run) for run in runs]), strict=True)), most[0]
    finally:
        await player.engine.close(LIMIT_S)


def outcome(served: ReplayedRequest) -> tuple[str, int, int, int]:
    """What must not depend on who else is served. Why no more was reused may: the nearest conversation can be another client's."""
    return served.recorded.file, served.response.status_code, served.prompt_tokens, served.reused_tokens


@pytest.mark.parametrize("runs", [RUNS, pytest.param(LONG_RUNS, marks=pytest.mark.long)], ids=["three", "five"])
def test_several_clients_at_once_each_reuse_what_they_reuse_alone(runs: tuple[str, ...]) -> None:
    together, most = asyncio.run(replay(*runs))
    assert most > 1
    for run in runs:
        alone, _ = asyncio.run(replay(run))
        assert [outcome(served) for served in together[run]] == [outcome(served) for served in alone[run]]
