"""What the disk has of a prompt while it is prefilled, and when the last event goes out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.engine.engines import Rig, events, running
from tests.fake_family import FakeFamily, scattered
from tests.records import StuckDisk
from tests.waiting import LIMIT_S, until

from forerun.bank import prefill_saver
from forerun.bank.bank import Bank
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.bank.writer import Writer
from forerun.decode.prefill import CHUNK_TOKENS
from forerun.engine import batch
from forerun.errors import ForerunError
from forerun.state.record import SEGMENT_TOKENS
from forerun.values import Done, QueuePosition

SEGMENT_BYTES = SEGMENT_TOKENS * FakeFamily(scattered(10), 10).spec.bytes_per_token
PROMPT = [(7 * i + i // 5) % 6000 for i in range(2420)]


async def killed_at_the_first_token(folder: Path, prompt: list[int], **job: object) -> int:
    """How many tokens of the prompt the folder can resume, as it is when the prompt is prefilled and nothing else has happened."""
    async with running(folder) as rig:
        rig.gate.hold(after=-(-len(prompt) // CHUNK_TOKENS))
        run = await rig.ask(prompt, max_tokens=5, **job)
        await rig.gate.reached(-(-len(prompt) // CHUNK_TOKENS) + 1)
        bank = rig.engine.model.bank
        await until(lambda: bank.stats.health().pending_writes == 0)
        durable = bank.durable_tokens(prompt, tenant="")
        rig.gate.open()
        done = (await events(run))[-1]
        assert isinstance(done, Done)
        assert done.report.durable_tokens == durable
        return durable


@pytest.mark.parametrize("num", [CHUNK_TOKENS, SEGMENT_TOKENS, SEGMENT_TOKENS + 1, len(PROMPT)])
def test_a_prompt_is_durable_before_its_answer_begins(num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_saver, "SAVING_FRAC", 1e9)
    assert asyncio.run(killed_at_the_first_token(tmp_path, PROMPT[:num])) == num


def test_less_than_a_chunk_is_left_to_the_end_of_the_turn(tmp_path: Path) -> None:
    assert asyncio.run(killed_at_the_first_token(tmp_path, PROMPT[: CHUNK_TOKENS - 1])) == 0


def test_what_costs_too_much_time_lags_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_saver, "SAVING_FRAC", -1.0)
    assert asyncio.run(killed_at_the_first_token(tmp_path, PROMPT)) == 0


def test_a_prompt_that_bypasses_the_bank_is_not_saved(tmp_path: Path) -> None:
    assert asyncio.run(killed_at_the_first_token(tmp_path, PROMPT, bank="bypass")) == 0


def test_nothing_is_written_twice_but_the_last_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_saver, "SAVING_FRAC", 1e9)
    written: list[tuple[str, int]] = []
    put = Writer.put

    def noted(self: Writer, record: object, label: object) -> None:
        written.append((record.info.kind, record.info.stop))  # type: ignore[attr-defined]
        put(self, record, label)  # type: ignore[arg-type]

    monkeypatch.setattr(Writer, "put", noted)

    async def scenario() -> None:
        async with running(tmp_path) as rig:
            await events(await rig.ask(PROMPT, max_tokens=5))
            await until(lambda: rig.engine.health().bank.pending_writes == 0)

    asyncio.run(scenario())
    segments = [stop for kind, stop in written if kind == "segment"]
    assert segments == [SEGMENT_TOKENS, 2 * SEGMENT_TOKENS, len(PROMPT), len(PROMPT) + 4]
    assert len(written) == len(set(written))


@pytest.mark.parametrize(("segments", "stored"), [(2.6, len(PROMPT) + 4), (1.6, 0)])
def test_a_turn_does_not_evict_what_it_wrote_during_its_prefill(
    segments: float, stored: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last block makes way for the longer one at its end if that fits then."""
    monkeypatch.setattr(prefill_saver, "SAVING_FRAC", 1e9)
    monkeypatch.setattr(DiskTier, "num_bytes", property(lambda tier: tier.index.totals.record_bytes))  # without the index, which grows

    async def scenario() -> None:
        async with running(tmp_path, disk_limit_bytes=INDEX_SLACK_BYTES + int(segments * SEGMENT_BYTES)) as rig:
            bank = rig.engine.model.bank
            await events(await rig.ask(PROMPT, max_tokens=5))
            await until(lambda: rig.engine.health().bank.pending_writes == 0)
            assert bank._disk is not None
            assert not [kind for (kind,) in bank._disk.index._rows("SELECT kind FROM lost") if kind == "evicted"]
            tokens = next(iter(bank._live)).tokens
            assert bank.durable_tokens(tokens, tenant="") == stored

    asyncio.run(scenario())


def test_the_last_event_does_not_wait_for_the_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_out, remember = threading.Event(), Bank.remember

    def slowly(self: Bank, *args: object) -> None:
        assert is_out.wait(LIMIT_S)
        remember(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Bank, "remember", slowly)

    async def scenario() -> None:
        async with running(tmp_path) as rig:
            assert isinstance((await events(await rig.ask(PROMPT[:40])))[-1], Done)
            assert rig.engine.health().bank.pending_writes >= 1, "it looks as if all were on disk"
            is_out.set()
            done = (await events(await rig.ask(PROMPT[:40])))[-1]
            assert isinstance(done, Done)
            assert done.report.source == "ram"

    asyncio.run(scenario())


def on_a_slow_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Rig, StuckDisk, list[int]], Awaitable[None]]) -> None:
    """The scenario gets a conversation that left RAM before the disk wrote it, as the next turn's prompt."""
    disk = StuckDisk(monkeypatch)

    async def run() -> None:
        async with running(folder, ram_limit_bytes=0) as rig:
            try:
                await events(await rig.ask(PROMPT, max_tokens=1))
                await until(lambda: rig.engine.health().bank.pending_writes > 0 and not rig.engine.worker.is_storing)
                await scenario(rig, disk, [*PROMPT, 1, 2, 3])
            finally:
                disk.may_write.set()

    asyncio.run(run())


def test_a_turn_that_waits_for_the_disk_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reused once the disk has it; meanwhile others are served."""
    monkeypatch.setattr(batch, "WRITE_WAIT_S", LIMIT_S)

    async def scenario(rig: Rig, disk: StuckDisk, prompt: list[int]) -> None:
        late = await rig.ask(prompt)
        assert isinstance((await events(await rig.ask(range(100, 150), bank="bypass")))[-1], Done)
        await until(lambda: rig.engine.worker.counts() == (0, 1))
        disk.may_write.set()
        received = await events(late)
        assert received[0] == QueuePosition(1)
        assert (received[-1].report.source, received[-1].report.reused_tokens) == ("ssd", len(PROMPT))  # type: ignore[union-attr]

    on_a_slow_disk(tmp_path, monkeypatch, scenario)


def test_a_turn_does_not_wait_for_a_stuck_disk_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "WRITE_WAIT_S", 0.05)

    async def scenario(rig: Rig, disk: StuckDisk, prompt: list[int]) -> None:
        done = (await events(await rig.ask(prompt)))[-1]
        assert isinstance(done, Done)
        assert done.report.source == "cold"
        assert disk.num_written == 0

    on_a_slow_disk(tmp_path, monkeypatch, scenario)


def test_a_turn_that_waits_for_the_disk_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "WRITE_WAIT_S", LIMIT_S)

    async def scenario(rig: Rig, disk: StuckDisk, prompt: list[int]) -> None:
        late = await rig.ask(prompt)
        late.cancel()
        await until(lambda: rig.engine.worker.counts() == (0, 0))
        with pytest.raises(ForerunError, match="disconnected"):
            await events(late)

    on_a_slow_disk(tmp_path, monkeypatch, scenario)
