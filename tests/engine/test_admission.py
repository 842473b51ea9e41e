"""A request that exceeds memory is refused before prefill, with the numbers; live conversations are evicted first. Nothing leaks."""

from __future__ import annotations

import asyncio
import gc
from contextlib import closing
from pathlib import Path

import mlx.core as mx
import pytest
from tests import tiny
from tests.engine.engines import events, running
from tests.families import CONFIGS, built, tensors
from tests.running import read
from tests.talking import TINY, opened, turn
from tests.waiting import LIMIT_S

from forerun import machine
from forerun.engine.admission import ADMIT_FRAC, free_memory_for, needed_bytes, usable_bytes
from forerun.errors import OutOfMemoryError
from forerun.state.layout import Paged

RAM_BYTES = 1_000_000


def test_a_request_that_exceeds_memory_is_refused_before_prefill() -> None:
    async def scenario() -> None:
        async with running(memory_bytes=1_000_000) as rig:
            with pytest.raises(OutOfMemoryError, match=r"50 tokens need .* of memory, .* of 1.0 MB are in use") as caught:
                await events(await rig.ask(range(40)))
            assert (rig.gate.rows, caught.value.hint != "") == ([], True)
            assert rig.engine.health().ready

    asyncio.run(scenario())


def test_live_conversations_are_evicted_for_a_request() -> None:
    with closing(opened(None)) as bank:
        for name in ("one", "two"):
            turn(bank, tiny.words(name, 100))
        mx.clear_cache()
        missing_bytes = bank.stats.ram_bytes // 4
        memory_bytes = int((mx.get_active_memory() - missing_bytes + needed_bytes(TINY.spec, 100)) / ADMIT_FRAC) + 1
        free_memory_for(bank, TINY.spec, 100, memory_bytes, lambda: None)
        assert bank.stats.health().sessions == 1
        with pytest.raises(OutOfMemoryError):
            free_memory_for(bank, TINY.spec, 100, memory_bytes - 2 * bank.stats.ram_bytes, lambda: None)
        assert bank.stats.health().sessions == 1, "evicted for a request that does not fit even then"


def test_free_pages_are_given_back_before_a_request_is_refused() -> None:
    with closing(opened(None)) as bank:
        before_bytes = mx.get_active_memory()
        pages = bank._sources.arena.store(Paged(64), 20_000)
        del pages
        assert mx.get_active_memory() - before_bytes > 20_000 * TINY.spec.bytes_per_token, "they stay with the pool"
        free_memory_for(bank, TINY.spec, 100, int((before_bytes + needed_bytes(TINY.spec, 100)) / ADMIT_FRAC) + 1, lambda: None)
        assert bank.paged_blocks == (0, 0)


def test_a_conversation_continues_in_its_own_memory() -> None:
    """It holds more than half of memory and ranks below the other: the other is evicted, and it continues in its own cache."""
    with closing(opened(None)) as bank:
        prompt = [*turn(bank, tiny.words("own", 600)).stored, *tiny.words("more", 10)]
        turn(bank, tiny.words("other", 100))
        mx.clear_cache()
        live = bank.resumable(prompt, tenant="", session=None)
        assert live is not None
        other_bytes = bank.stats.ram_bytes - live.num_bytes
        base = mx.get_active_memory() - live.num_bytes - other_bytes // 2
        memory_bytes = int((base + needed_bytes(TINY.spec, len(prompt))) / ADMIT_FRAC) + 1
        free_memory_for(bank, TINY.spec, len(prompt), memory_bytes, lambda: live)
        assert bank.stats.health().sessions == 1
        assert turn(bank, prompt).restored.source == "ram"


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("tokens", [100, 600])
def test_no_prompt_needs_more_than_estimated(kind: str, tokens: int) -> None:
    family = built(CONFIGS[kind], tensors(kind))
    mx.eval(family.head(read(family, [1]).hidden[None]))
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    cache = read(family, tiny.words(kind, tokens))
    assert cache.num_bytes < mx.get_peak_memory() - before < needed_bytes(family.spec, tokens)


@pytest.mark.parametrize("turns", [20, pytest.param(200, marks=pytest.mark.long)])
def test_reported_memory_is_the_memory_in_use_over_many_turns(turns: int, tmp_path: Path) -> None:
    """Three interleaved conversations grow and restart, together larger than the RAM quota; every fifth turn is an edit."""
    stored: dict[int, list[int]] = {}
    mx.eval(TINY.head(read(TINY, [1]).hidden[None]))
    gc.collect()
    base = mx.get_active_memory()
    with closing(opened(tmp_path / "bank", ram_limit_bytes=RAM_BYTES)) as bank:
        for number in range(turns):
            which = number % 3
            before = stored.get(which, []) if number % 20 else []
            prompt = (before[: len(before) * 3 // 4] if number % 5 == 4 else before) + tiny.words((number, "more"), 30)
            stored[which] = turn(bank, prompt, max_tokens=5).stored
            assert bank.flush(LIMIT_S)
            held, reported = mx.get_active_memory() - base, bank.stats.ram_bytes
            assert 0.9 * reported < held <= reported <= RAM_BYTES, (
                f"turn {number}"
            )  # a snapshot at the end shares its arrays with the cache
    assert mx.get_active_memory() == base


def test_what_other_programs_have_taken_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 9_000_000)
    mx.clear_cache()
    assert usable_bytes(1 << 50) == pytest.approx((mx.get_active_memory() + mx.get_cache_memory() + 9_000_000) / ADMIT_FRAC, abs=2)
    assert usable_bytes(1000) == 1000
