"""Tokens reported as reused were not computed, judged by the rows that pass through the model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.engine.engines import Rig, events, running

from forerun.decode.draft_stats import MAX_DEPTH
from forerun.values import Done

PROMPT = [(11 * i + i // 3) % 6000 for i in range(700)]
NEW = [5, 6, 7, 8, 9, 10, 11, 12, 13]  # longer than a verification


async def served(rig: Rig, tokens: list[int]) -> tuple[Done, list[int]]:
    """How a request ended, and the rows of the passes that prefilled its prompt."""
    before = len(rig.gate.rows)
    done = (await events(await rig.ask(tokens)))[-1]
    assert isinstance(done, Done)
    rows = rig.gate.rows[before:]
    prefilled = [num for i, num in enumerate(rows) if sum(rows[:i]) < done.report.computed_tokens]
    assert max(rows[len(prefilled) :]) <= MAX_DEPTH + 1, "part of the prompt is computed again in decoding"
    return done, prefilled


def test_no_token_reported_as_reused_passes_through_the_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        sources, prompt = [], PROMPT
        for _ in range(2):
            async with running(tmp_path / "bank") as rig:
                rig.gate.open()
                prompt_tokens = 0
                for _ in range(2):
                    done, prefilled = await served(rig, prompt)
                    sources.append(done.report.source)
                    assert sum(prefilled) == done.report.computed_tokens == len(prompt) - done.usage.cached_tokens
                    prompt_tokens += len(prompt)
                    prompt = [*prompt, *NEW]
                counted = [rig.engine.registry.get_sample_value("forerun_prompt_tokens_total", {"kind": k}) for k in ("computed", "reused")]
                assert sum(filter(None, counted)) == prompt_tokens
        # The second prompt drops the answer: the first conversation stays live if what was saved during its prefill reaches as deep.
        assert sources in (["cold", source, "ssd", "ram"] for source in ("ram", "ssd"))

    asyncio.run(scenario())


@pytest.mark.parametrize("has_ram", [True, False])
def test_without_a_bank_the_report_gives_the_reason(has_ram: bool) -> None:
    async def scenario() -> None:
        async with running(ram_limit_bytes=(1 << 30) * has_ram) as rig:
            for _ in range(2):
                done, _ = await served(rig, PROMPT)
            health, report = rig.engine.health(), done.report
            assert (health.status, report.source) == (("ok", "ram") if has_ram else ("degraded", "cold"))
            if not has_ram:
                assert health.reasons == (report.reason,) == ("no conversation is stored: bank_ram_bytes and bank_disk_bytes are 0",)
                assert report.miss is not None
                assert report.miss.kind == "bypass"

    asyncio.run(scenario())
