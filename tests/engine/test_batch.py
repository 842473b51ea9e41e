"""What a batch does in which order: bounds on waiting by the passes that were run, shared passes with drafts, memory, shared beginnings."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from itertools import groupby
from pathlib import Path
from statistics import mean

import mlx.core as mx
import pytest
from tests import tiny
from tests.contracts.test_shared_rounds import BatchedStates
from tests.engine.batches import TickedBatch, ticked
from tests.engine.engines import Rig, events, running
from tests.fake_family import FakeFamily, scattered
from tests.running import greedy, read
from tests.talking import generation
from tests.waiting import until

from forerun.decode.compiled import StepTable
from forerun.decode.generate import decode
from forerun.decode.prefill import CHUNK_TOKENS, PIECES
from forerun.engine.admission import ADMIT_FRAC, growth_bytes, needed_bytes
from forerun.engine.scheduler import PREFILL_FRAC, TimeShare
from forerun.engine.sequence import Phase
from forerun.errors import ForerunError, OutOfMemoryError
from forerun.models.base import Family
from forerun.values import Done, QueuePosition, Report

TINY = tiny.family()
SHORT = [tiny.words(("short", i), 20) for i in range(8)]
LONG = [tiny.words(("long", i), 3 * CHUNK_TOKENS) for i in range(8)]
PROMPT = [(11 * i + i // 3) % 6000 for i in range(40)]


def with_batch(monkeypatch: pytest.MonkeyPatch, scenario: Callable[[TickedBatch], None], **options: int) -> None:
    """Run the scenario on a batch of the tiny model."""

    async def run() -> None:
        with ticked(TINY, monkeypatch, **options) as found:
            scenario(found)

    asyncio.run(run())


@pytest.mark.parametrize("num_decoding", [1, 4])
def test_b13_decoding_waits_for_a_piece_of_a_prompt_at_most_and_the_prompt_ends_in_its_time(
    num_decoding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scenario(found: TickedBatch) -> None:
        for tokens in SHORT[:num_decoding]:
            found.add(tokens, max_tokens=1000)
        while found.batch._in(Phase.PREFILL):
            found.tick()
        prompt, start_s = found.add(LONG[0]), found.family.now_s
        del found.family.trace[:]
        while prompt.phase is Phase.PREFILL:
            found.tick()
        runs = [(kind, len(list(group))) for kind, group in groupby(kind for kind, _ in found.family.trace)]
        layers = len(TINY.spec.layers)
        assert max(num for kind, num in runs if kind == "piece") <= -(-layers // PIECES)
        assert sum(num for kind, num in runs if kind == "piece") == 3 * layers
        piece_s = CHUNK_TOKENS / 16 / PIECES
        most_s = 3 * PIECES * (piece_s / PREFILL_FRAC + 2)  # a round is never cut off
        assert found.family.now_s - start_s <= most_s

    with_batch(monkeypatch, scenario)


def test_what_a_request_shares_is_not_taken_for_that_of_a_later_one_at_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(found: TickedBatch) -> None:
        found.add(LONG[0])
        for _ in range(10):  # each leaves the queue, and its memory is used again
            assert found.batch.is_prefix_coming(found.request(LONG[0]))
            assert not found.batch.is_prefix_coming(found.request(LONG[1]))

    with_batch(monkeypatch, scenario)


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_b14_no_number_of_prompts_at_once_has_a_slow_first_token(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s: dict[int, list[float]] = {}

    def scenario(found: TickedBatch) -> None:
        sequences = [
            found.add(tokens[: CHUNK_TOKENS - i], max_tokens=1000) for i, tokens in enumerate(LONG[: found.batch.model.max_running])
        ]
        while len(found.first_s) < len(sequences):
            found.tick()
        waited_s[len(sequences)] = [found.first_s[each] for each in sequences]

    for together in (1, num):
        with_batch(monkeypatch, scenario, max_running=together)
    (alone_s,), each_s = waited_s[1], waited_s[num]
    assert mean(each_s) <= 1.1 * num * alone_s  # 2.2 times for two
    assert max(each_s) <= num * alone_s / PREFILL_FRAC + PIECES * num * 2


def test_tenants_prompts_are_prefilled_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(found: TickedBatch) -> None:
        many = [found.add(tokens[:CHUNK_TOKENS], max_tokens=0, tenant="many") for tokens in LONG[:4]]
        one = found.add(LONG[4], max_tokens=0, tenant="one")
        for ticks in range(1, 7):
            found.tick()
            assert abs(one.cache.length - sum(sequence.cache.length for sequence in many)) <= CHUNK_TOKENS, ticks
        assert one in found.ended

    with_batch(monkeypatch, scenario)


def test_b15_prompts_that_begin_in_one_step_are_all_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(found: TickedBatch) -> None:
        sequences = [found.add(tokens) for tokens in SHORT]
        found.run()
        assert list(found.ended.values()) == [None] * 8
        answers = [sequence.generation.tokens for sequence in sequences if sequence.generation]
        assert answers == [greedy(TINY, read(TINY, tokens), 10) for tokens in SHORT]

    with_batch(monkeypatch, scenario)


def test_b8_shared_rounds_draft_however_requests_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of n sequences with d drafts each are passes of n (d + 1) rows."""

    def scenario(found: TickedBatch) -> None:
        for i, tokens in enumerate(SHORT[:4]):
            found.add(tokens, max_tokens=30)
            for _ in range(5 + i):
                found.tick()
        rows = [rows for kind, rows in found.family.trace if kind == "round"]
        shared = [n for n in rows if n > 3]
        assert len(shared) > 5
        assert all(n % 3 == 0 for n in shared), rows

    with_batch(monkeypatch, scenario)


def test_b17_an_answer_that_cannot_use_drafts_shares_the_round_of_those_that_can() -> None:
    family, rows = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB), list[int]()
    ends, drafts = (generation(family, read(family, SHORT[i]), SHORT[i], max_tokens=num, depth=3) for i, num in enumerate((2, 30)))
    for each in (ends, drafts):
        each.begin()
    family.before_pass = rows.append
    decode([ends, drafts])
    assert rows == [1 + 4]
    assert ends.finish == "length"


def test_b7_after_a_shared_round_a_lone_answer_drafts_and_is_compiled_as_before() -> None:
    steps = StepTable(TINY, eager_reason="")
    long, short = (generation(TINY, read(TINY, SHORT[i]), SHORT[i], max_tokens=99, depth=2) for i in range(2))
    for each in (long, short):
        each.steps = each.rounds._steps = steps
        each.begin()

    def counted(*members: object) -> dict[str, int]:
        before, drafted = steps.counts(), sum(long.draft_stats.drafted)
        decode(list(members))  # type: ignore[arg-type]
        assert sum(long.draft_stats.drafted) == drafted + 2
        return dict(steps.counts() - before)

    alone = counted(long)
    assert set(alone) == {"compiled"}
    assert set(counted(long, short)) == {"batch"}
    assert counted(long) == alone


def test_b16_a_mixed_batch_holds_the_sum_of_its_parts_and_asks_for_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    mx.eval(TINY.head(read(TINY, [1]).hidden[None]))

    def scenario(found: TickedBatch) -> None:
        gc.collect()
        mx.clear_cache()
        base = mx.get_active_memory()
        parts = [found.add(tokens, max_tokens=5, bank="bypass") for tokens in (LONG[0], *SHORT[:4])]
        promised = sum(each.num_bytes + growth_bytes(TINY.spec, each.context_tokens, each.num_bytes) for each in parts)
        alone = [growth_bytes(TINY.spec, each.context_tokens, 0) for each in parts]
        assert sum(alone) <= promised <= 1.1 * sum(alone)
        while found.batch._in(Phase.PREFILL):
            found.tick()
        held = sum(each.num_bytes for each in found.batch.running)
        del parts
        mx.clear_cache()
        assert held * 0.9 <= mx.get_active_memory() - base <= promised

    with_batch(monkeypatch, scenario)


def memory_for(family: Family, context_tokens: int) -> int:
    """So that one request of so many tokens fits, but not another while it runs."""
    gc.collect()
    mx.clear_cache()
    needed, growth = needed_bytes(family.spec, context_tokens), growth_bytes(family.spec, context_tokens, 0)
    return int((mx.get_active_memory() + needed + growth / 2) / ADMIT_FRAC)


@pytest.mark.parametrize(("family", "tokens"), [(TINY, 600), (BatchedStates(), 20)], ids=["a large cache", "large snapshots"])
def test_what_running_sequences_are_promised_is_not_promised_again(family: Family, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before the first one's first pass, when nothing is computed yet, nor later; but when it has ended."""
    mx.eval(family.head(read(family, [1]).hidden[None]))
    prompts = [tiny.words(("memory", i), tokens) for i in range(2)]

    async def scenario() -> None:
        with ticked(family, monkeypatch, memory_bytes=memory_for(family, tokens + 512)) as found:
            found.add(prompts[0], max_tokens=512, bank="bypass")
            assert not found.admits(prompts[1], max_tokens=512, bank="bypass")
            for _ in range(4):
                found.tick()
            assert not found.admits(prompts[1], max_tokens=512, bank="bypass")
            found.run()
            found.ended.clear()
            found.first_s.clear()
            gc.collect()
            assert found.admits(prompts[1], max_tokens=512, bank="bypass")

    asyncio.run(scenario())


def test_a_request_waits_for_memory_and_is_told_its_place() -> None:
    """The second one fits when the first has ended; one that does not fit alone is refused."""
    mx.eval(TINY.head(read(TINY, [1]).hidden[None]))

    async def scenario() -> None:
        prompts = [tiny.words(("memory", i), 600) for i in range(2)]
        async with running(model=TINY, memory_bytes=memory_for(TINY, 1112)) as rig:
            rig.gate.hold()
            first = await rig.ask(prompts[0], max_tokens=512, bank="bypass")
            await rig.gate.let(5, rig.is_idle)
            second = await rig.ask(prompts[1], max_tokens=512, bank="bypass")
            await rig.gate.let(5, rig.is_idle)
            assert rig.engine.worker.counts() == (1, 1)
            rig.gate.open()
            assert (await report(first)).sequences_per_round == 1
            received = await events(second)
            assert received[0] == QueuePosition(1)
            with pytest.raises(OutOfMemoryError):
                await events(await rig.ask(tiny.words("memory", 3000), max_tokens=512, bank="bypass"))
            await until(rig.is_idle)

    asyncio.run(scenario())


async def report(run: object) -> Report:
    done = (await events(run))[-1]  # type: ignore[arg-type]
    assert isinstance(done, Done)
    return done.report


# --- sharing a beginning

BEGINNING = [(13 * i + i // 7) % 6000 for i in range(3000)]
RESTS = [[(17 * i + j) % 6000 for i in range(30 + 10 * j)] for j in range(4)]


def with_rig(scenario: Callable[[Rig], Awaitable[None]], folder: Path | None = None) -> None:
    async def run() -> None:
        async with running(folder) as rig:
            await scenario(rig)

    asyncio.run(run())


def text(of: list[object]) -> str:
    return "".join(getattr(event, "text", "") for event in of)


def test_a_beginning_that_several_requests_share_is_computed_once() -> None:
    async def scenario(rig: Rig) -> None:
        rig.gate.hold()
        runs = [await rig.ask([*BEGINNING, *rest]) for rest in RESTS]
        rig.gate.open()
        received = [await events(run) for run in runs]
        reports = [each[-1].report for each in received if isinstance(each[-1], Done)]
        assert sum(report.computed_tokens for report in reports) == len(BEGINNING) + sum(map(len, RESTS))
        assert [report.forked_from != "" for report in reports] == [False, True, True, True]
        for rest, found in zip(RESTS, received, strict=True):
            assert text(found) == text(await events(await rig.ask([*BEGINNING, *rest], bank="bypass")))

    with_rig(scenario)


def test_a_burst_that_fits_waits_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Places are free for all: none waits, though each is admitted after the one before it."""
    caplog.set_level("INFO")

    async def scenario(rig: Rig) -> None:
        rig.gate.hold()
        runs = [await rig.ask(rest) for rest in RESTS]
        rig.gate.open()
        assert [[event for event in await events(run) if isinstance(event, QueuePosition)] for run in runs] == [[], [], [], []]

    with_rig(scenario)
    assert [record.message for record in caplog.records if "waits for" in record.message] == []


def test_each_that_waits_for_a_shared_beginning_is_told_its_place() -> None:
    async def scenario(rig: Rig) -> None:
        rig.gate.hold()
        runs = [await rig.ask([*BEGINNING, *rest]) for rest in RESTS]
        await rig.gate.let(2, rig.is_idle)
        rig.gate.open()
        places = [[event.ahead for event in await events(run) if isinstance(event, QueuePosition)] for run in runs]
        assert places[0] == []
        assert all(places[1:]), places

    with_rig(scenario)


@pytest.mark.parametrize("passes", [1, 3, 5])
def test_a_shared_beginning_survives_the_one_that_computes_it(passes: int) -> None:
    """It goes away in its second chunk or later: the others get their answers, and no token is computed twice."""

    async def scenario(rig: Rig) -> None:
        rig.gate.hold(after=passes)
        runs = [await rig.ask([*BEGINNING, *rest]) for rest in RESTS]
        await rig.gate.reached(passes + 1)
        runs[0].cancel()
        rig.gate.open()
        received = [await events(run) for run in runs[1:]]
        computed = sum(rows for rows in rig.gate.rows if rows > 20)  # more than a round of all has
        assert len(BEGINNING) + sum(map(len, RESTS[1:])) <= computed <= len(BEGINNING) + sum(map(len, RESTS))
        for rest, found in zip(RESTS[1:], received, strict=True):
            assert text(found) == text(await events(await rig.ask([*BEGINNING, *rest], bank="bypass")))

    with_rig(scenario)


def test_nothing_is_stored_of_a_request_that_goes_away_before_its_first_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeShare, "is_prefill_due", lambda share, can_decode: not can_decode)

    async def scenario(rig: Rig) -> None:
        rig.gate.hold(after=3)
        first = await rig.ask(PROMPT, max_tokens=100)
        await rig.gate.reached(4)
        second = await rig.ask(PROMPT[7:])
        await rig.gate.let(3, rig.is_idle)
        assert rig.engine.worker.counts() == (2, 0)
        second.cancel()
        rig.gate.open()
        with pytest.raises(ForerunError, match="the client disconnected"):
            await events(second)
        await events(first)
        await until(rig.is_idle)
        assert len(await rig.engine.sessions.all("", 10)) == 1
        assert [rows for rows in rig.gate.rows if rows > 3] == [len(PROMPT)]

    with_rig(scenario, tmp_path / "bank")


# --- churn


def test_b21_two_streams_with_evictions_hold_no_more_memory_in_the_end() -> None:
    mx.eval(TINY.head(read(TINY, [1]).hidden[None]))

    async def scenario() -> None:
        async with running(model=TINY, ram_limit_bytes=1_500_000) as rig:
            held = list[int]()
            for turn in range(24):
                runs = [await rig.ask(tiny.words((turn, stream), 100 + turn), max_tokens=8) for stream in range(2)]
                for run in runs:
                    await events(run)
                await until(rig.is_idle)
                held.append(mx.get_active_memory())
            assert max(held[12:]) <= max(held[4:12]) * 1.05

    asyncio.run(scenario())
