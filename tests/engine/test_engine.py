"""The engine under load: scheduling, queueing, cancellation, failures and shutdown."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.engines import CONTEXT, Rig, events, running
from tests.records import StuckDisk
from tests.running import greedy, read
from tests.talking import tokenizer
from tests.waiting import LIMIT_S, until

from forerun.bank import prefill_saver
from forerun.bank.live import CaptureUnit, LiveConversation
from forerun.bank.tier.disk import DiskTier
from forerun.decode.prefill import CHUNK_TOKENS
from forerun.engine import worker
from forerun.engine.engine import Run
from forerun.engine.scheduler import MAX_WAITING
from forerun.engine.worker import SAVING_FRAC, Worker
from forerun.errors import BadRequestError, BusyError, ContextLengthError, ForerunError, ModelError
from forerun.state.record import Record
from forerun.text.prompt_locations import PromptLocator
from forerun.values import GREEDY, Chat, Content, Done, Event, PrefillProgress, QueuePosition, Report

PROMPT = [(11 * i + i // 3) % 6000 for i in range(40)]
LONG = [(13 * i + i // 7) % 6000 for i in range(3 * CHUNK_TOKENS)]


def done(of: list[Event]) -> Done:
    last = of[-1]
    assert isinstance(last, Done)
    return last


def text(of: list[Event]) -> str:
    return "".join(event.text for event in of if isinstance(event, Content))


def expected(rig: Rig, prompt: list[int], num: int = 10) -> str:
    """The model's greedy answer, computed without the engine."""
    return tokenizer().decode(greedy(rig.family, read(rig.family, prompt), num))


# --- one request


def test_events_of_a_request_in_order() -> None:
    async def scenario() -> None:
        async with running() as rig:
            received = await events(await rig.ask(LONG))
            assert [type(event) for event in received[:4]] == [PrefillProgress] * 4
            assert [event.done_tokens for event in received if isinstance(event, PrefillProgress)] == [0, 512, 1024, 1536]
            assert all(isinstance(event, Content) for event in received[4:-1])
            assert text(received) == expected(rig, LONG)
            assert done(received).finish == "length"

    asyncio.run(scenario())


def test_the_report_adds_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            first = done(await events(await rig.ask(PROMPT)))
            report = first.report
            assert (report.source, report.reused_tokens, report.computed_tokens, report.reason) == (
                *("cold", 0, len(PROMPT)),
                "no stored conversation begins like this prompt",
            )
            assert (report.layout, report.step_kind, report.numerics) == ("contiguous", "eager", "exact")
            assert first.usage.completion_tokens == 10
            assert 0 <= report.queue_s <= report.queue_s + report.restore_s <= report.ttft_s
            assert report.prefill_tok_per_s is not None
            assert report.decode_tok_per_s is not None
            assert sum(depth * rounds for depth, rounds in enumerate(report.depths)) == sum(report.drafted)
            assert report.rounds + sum(report.accepted) == 9
            await until(lambda: not rig.engine.health().bank.pending_writes)
            again = done(await events(await rig.ask(PROMPT)))
            assert (again.report.source, again.report.reused_tokens, again.report.computed_tokens) == ("ram", len(PROMPT), 0)
            assert again.report.forked_from == report.session
            assert again.report.prefill_tok_per_s is None
            assert again.report.session == report.session
            one = done(await events(await rig.ask(PROMPT, max_tokens=1)))
            assert one.report.decode_tok_per_s is None
            assert one.usage.completion_tokens == 1

    asyncio.run(scenario())


def test_a_conversation_continues_and_survives_the_engine(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            first = await events(await rig.ask(PROMPT))
            assert first
            stored = PROMPT + greedy(rig.family, read(rig.family, PROMPT), 9)
            second = await events(await rig.ask([*stored, 5, 6]))
            assert done(second).report.reused_tokens == len(stored)
            assert text(second) == expected(rig, [*stored, 5, 6])
        async with running(tmp_path / "bank") as rig:
            third = await events(await rig.ask([*stored, 7, 8]))
            assert (done(third).report.source, done(third).report.reused_tokens) == ("ssd", len(stored))
            assert text(third) == expected(rig, [*stored, 7, 8])

    asyncio.run(scenario())


def test_a_long_conversation_is_decoded_in_pages_and_restored(tmp_path: Path) -> None:
    async def scenario() -> None:
        stored, sources = PROMPT[:20], []
        for _ in range(2):
            async with running(tmp_path / "bank", dense_tokens=120) as rig:
                for _ in range(3):
                    stored += LONG[len(stored) : len(stored) + 15]
                    received = await events(await rig.ask(stored, max_tokens=12))
                    report = done(received).report
                    assert text(received) == expected(rig, stored, 12)
                    assert report.layout == ("contiguous" if len(stored) + 12 <= 120 else "paged(64)")
                    assert (report.paged_blocks > 0) == (report.layout == "paged(64)")
                    stored += greedy(rig.family, read(rig.family, stored), 11)
                    sources.append((report.source, report.layout))
        assert [source for source, _ in sources] == ["cold", "ram", "ram", "ssd", "ram", "ram"]
        assert [layout for _, layout in sources] == ["contiguous"] * 3 + ["paged(64)"] * 3

    asyncio.run(scenario())


def test_bypass_neither_restores_nor_stores(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            for _ in range(2):
                report = done(await events(await rig.ask(PROMPT, bank="bypass"))).report
                assert (report.source, report.reason, report.computed_tokens) == ("cold", "bypass", len(PROMPT))
            assert rig.engine.health().bank.sessions == 0
            await events(await rig.ask(PROMPT))
            assert done(await events(await rig.ask(PROMPT, bank="bypass"))).report.reused_tokens == 0
            assert done(await events(await rig.ask(PROMPT))).report.reused_tokens == len(PROMPT)

    asyncio.run(scenario())


def test_a_stop_token_and_a_stop_string_end_it() -> None:
    async def scenario() -> None:
        async with running() as rig:
            whole = expected(rig, PROMPT)
            stop_id = min(tokenizer().stop_ids)
            received = await events(await rig.ask(PROMPT, stop=(whole[4:7],)))
            assert (text(received), done(received).finish) == (whole[: whole.index(whole[4:7])], "stop")
            assert done(received).stop_string == whole[4:7]
            rig.family.script = lambda position, token, total: 33 if position < len(PROMPT) + 3 else stop_id
            received = await events(await rig.ask(PROMPT, max_tokens=None))
            assert (text(received), done(received).finish) == (tokenizer().decode([33] * 3), "stop")
            assert done(received).usage.completion_tokens == 4
            assert done(received).stop_string == ""

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"tokens": []}, BadRequestError, "empty"),
        ({"tokens": [1, 1 << 20]}, BadRequestError, "token ids run from 0"),
        ({"tokens": [1, -1]}, BadRequestError, "token ids run from 0"),
        ({"tokens": [1] * CONTEXT}, ContextLengthError, f"prompt is too long: {CONTEXT} tokens > {CONTEXT - 1} maximum"),
        ({"tokens": [1], "sampling": replace(GREEDY, logit_bias={1 << 20: 1.0})}, BadRequestError, "logit_bias"),
    ],
    ids=["empty", "too large", "negative", "too long", "bias"],
)
def test_an_invalid_request_is_refused_before_it_is_queued(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            with pytest.raises(error, match=message):
                await rig.ask(**fields)
            assert rig.engine.health().waiting == 0

    asyncio.run(scenario())


def test_a_prompt_is_counted_without_being_served() -> None:
    async def scenario() -> None:
        async with running() as rig:
            chat = Chat(({"role": "user", "content": "Hello!"},), (), {})
            counted = await rig.engine.count_tokens(chat, tenant="")
            assert counted == done(await events(await rig.ask([], prompt=chat))).usage.prompt_tokens

    asyncio.run(scenario())


def test_an_answer_may_fill_the_context() -> None:
    async def scenario() -> None:
        async with running() as rig:
            for max_tokens in (None, 20, 32_000):
                received = done(await events(await rig.ask([1] * (CONTEXT - 20), max_tokens=max_tokens)))
                assert (received.finish, received.usage.completion_tokens) == ("length", 20)

    asyncio.run(scenario())


def test_a_chat_is_rendered_and_sampled_tokens_are_reused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            messages: list[dict[str, Any]] = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hello!"}]
            off = {"enable_thinking": False}
            first = await events(await rig.ask([], prompt=Chat(tuple(messages), (), off)))
            messages += [{"role": "assistant", "content": text(first)}, {"role": "user", "content": "Continue."}]
            second = done(await events(await rig.ask([], prompt=Chat(tuple(messages), (), off))))
            assert second.report.reused_tokens >= done(first).usage.prompt_tokens - 12

    asyncio.run(scenario())


@pytest.mark.parametrize("num", [12, 1100])
def test_sampled_tokens_are_reused_after_a_restart(num: int, tmp_path: Path) -> None:
    """The answers are random tokens: the tokenizer splits their text differently."""

    async def turn(messages: list[dict[str, Any]]) -> Done:
        async with running(tmp_path / "bank", forgets=True) as rig:
            received = await events(await rig.ask([], prompt=Chat(tuple(messages), (), {"enable_thinking": False}), max_tokens=num))
        messages += [{"role": "assistant", "content": text(received)}, {"role": "user", "content": "Continue."}]
        return done(received)

    async def scenario() -> None:
        messages: list[dict[str, Any]] = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hello!"}]
        before = await turn(messages)
        for _ in range(2):
            received = await turn(messages)
            assert received.report.source == "ssd"
            assert received.report.reused_tokens >= before.usage.prompt_tokens + num - 2
            before = received

    asyncio.run(scenario())


def diverging(folder: Path) -> Report:
    """The report of a prompt that diverges from a stored one in its second message."""

    async def scenario() -> Report:
        async with running(folder) as rig:
            for question in ("What is red?", "What is green?"):
                messages = ({"role": "system", "content": "You help."}, {"role": "user", "content": question})
                received = done(await events(await rig.ask([], prompt=Chat(messages, (), {}))))
            return received.report

    return asyncio.run(scenario())


def test_a_miss_names_the_edited_message_with_both_texts(tmp_path: Path) -> None:
    report = diverging(tmp_path)
    missed = report.miss
    assert missed is not None
    assert (missed.kind, missed.where, missed.field) == ("differs", "message 1 (user)", "content")
    assert ("What is " + missed.prompt_text).startswith(("What is green?", "What is  green?"))
    assert "red?" in missed.stored_text
    assert "diverges after" in report.reason


def test_the_thread_that_serves_renders_nothing_to_explain_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, rendered = set[str](), PromptLocator._text

    def noted(locator: PromptLocator, chat: Chat) -> str:
        threads.add(threading.current_thread().name.partition("_")[0])
        return rendered(locator, chat)

    monkeypatch.setattr(PromptLocator, "_text", noted)
    assert diverging(tmp_path).miss
    assert threads == {"report"}


def test_a_miss_that_cannot_be_explained_is_logged_and_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PromptLocator, "_text", lambda locator, chat: 1 / 0)
    report = diverging(tmp_path)
    assert report.miss is None
    assert "diverges after" in report.reason
    assert "a miss could not be explained" in caplog.text


# --- the queue


def test_requests_that_may_not_run_yet_run_in_order_of_arrival() -> None:
    async def scenario() -> None:
        async with running(max_running=1) as rig:
            rig.gate.hold()
            runs = [await rig.ask(PROMPT, max_tokens=3)]
            await rig.gate.reached(1)
            runs += [await rig.ask(PROMPT[i:], max_tokens=3) for i in range(1, 4)]
            assert (rig.engine.health().running, rig.engine.health().waiting) == (1, 3)
            finished: list[int] = []

            async def follow(number: int, run: Run) -> list[Event]:
                received = await events(run)
                finished.append(number)
                return received

            following = [asyncio.create_task(follow(i, run)) for i, run in enumerate(runs)]
            rig.gate.open()
            received = [await task for task in following]
            assert finished == [0, 1, 2, 3]
            assert [t[0] for t in received[1:]] == [QueuePosition(1), QueuePosition(2), QueuePosition(3)]
            assert done(received[3]).report.queue_s > 0
            assert rig.gate.rows[0] == len(PROMPT)
            assert [rows for rows in rig.gate.rows if rows > 3] == [len(PROMPT) - i for i in range(4)]

    asyncio.run(scenario())


def test_freed_memory_goes_back_to_the_system_once_after_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[None] = []
    monkeypatch.setattr(worker, "release_buffers", lambda: released.append(None))

    async def scenario() -> None:
        async with running() as rig:
            await events(await rig.ask(PROMPT))
            await asyncio.sleep(1.5)
            assert not released
            monkeypatch.setattr(worker, "REST_S", 0.0)
            await asyncio.sleep(2.5)
            assert len(released) == 1
            await events(await rig.ask(PROMPT))
            await asyncio.sleep(1.5)
            assert len(released) == 2

    asyncio.run(scenario())


def test_a_tenants_one_request_does_not_wait_for_all_of_anothers() -> None:
    async def scenario() -> None:
        async with running(max_running=1) as rig:
            rig.gate.hold()
            first = await rig.ask(PROMPT, tenant="many")
            await rig.gate.reached(1)
            others = [await rig.ask(PROMPT[i:], tenant="many") for i in range(1, MAX_WAITING + 1)]
            with pytest.raises(BusyError):
                await rig.ask(PROMPT, tenant="many")
            once = await rig.ask(PROMPT, tenant="few")
            rig.gate.open()
            await events(first)
            waited_s = done(await events(once)).report.queue_s
            assert min([done(await events(run)).report.queue_s for run in others]) > waited_s

    asyncio.run(scenario())


def test_a_full_queue_refuses_requests() -> None:
    async def scenario() -> None:
        async with running(max_running=1) as rig:
            rig.gate.hold()
            runs = [await rig.ask(PROMPT, max_tokens=1)]
            await rig.gate.reached(1)
            runs += [await rig.ask(PROMPT[i:], max_tokens=1) for i in range(MAX_WAITING)]
            with pytest.raises(BusyError, match="16 requests are waiting already") as caught:
                await rig.ask(PROMPT)
            assert caught.value.retry_after_s >= 1
            runs.pop(3).cancel()
            runs.append(await rig.ask(PROMPT, max_tokens=1))  # there is a free position again
            with pytest.raises(BusyError):
                await rig.ask(PROMPT)
            rig.gate.open()
            assert [done(await events(run)).usage.completion_tokens for run in runs] == [1] * 17

    asyncio.run(scenario())


def test_requests_that_may_run_at_once_take_no_place_in_the_queue() -> None:
    async def scenario() -> None:
        async with running(max_running=24) as rig:
            rig.gate.hold()
            runs = [await rig.ask(PROMPT, max_tokens=1)]
            await rig.gate.reached(1)
            runs += [await rig.ask(PROMPT[i:], max_tokens=1) for i in range(23 + MAX_WAITING)]
            with pytest.raises(BusyError, match="39 requests are waiting already"):
                await rig.ask(PROMPT)
            rig.gate.open()
            assert [done(await events(run)).usage.completion_tokens for run in runs] == [1] * 40

    asyncio.run(scenario())


# --- cancellation


async def cancelled(run: Run) -> None:
    with pytest.raises(ForerunError, match="the client disconnected"):
        await events(run)


def test_a_request_cancelled_in_the_queue_never_runs() -> None:
    async def scenario() -> None:
        async with running() as rig:
            rig.gate.hold()
            first = await rig.ask(PROMPT, max_tokens=2)
            await rig.gate.reached(1)
            second = await rig.ask(LONG)
            second.cancel()
            second.cancel()
            assert rig.engine.health().waiting == 0
            await cancelled(second)
            rig.gate.open()
            await events(first)
            await events(await rig.ask(PROMPT[:7], max_tokens=1))
            assert CHUNK_TOKENS not in rig.gate.rows

    asyncio.run(scenario())


def test_a_request_cancelled_in_prefill_stops_after_the_chunk_and_stores_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            rig.gate.hold()
            run = await rig.ask(LONG)
            await rig.gate.reached(1)
            run.cancel()
            rig.gate.open()
            await cancelled(run)
            assert rig.gate.rows == [CHUNK_TOKENS]
            again = await events(await rig.ask(LONG))
            assert done(again).report.reused_tokens == CHUNK_TOKENS
            assert text(again) == expected(rig, LONG)

    asyncio.run(scenario())


def test_a_client_that_disconnects_after_every_chunk_finishes_despite_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        for _ in range(2):
            async with running(tmp_path / "bank") as rig:
                rig.gate.hold()
                run = await rig.ask(LONG)
                await rig.gate.reached(1)
                run.cancel()
                rig.gate.open()
                await cancelled(run)
                assert rig.gate.rows == [CHUNK_TOKENS]
        async with running(tmp_path / "bank") as rig:
            received = await events(await rig.ask(LONG))
            assert (done(received).report.source, done(received).report.computed_tokens) == ("ssd", CHUNK_TOKENS)
            assert text(received) == expected(rig, LONG)

    asyncio.run(scenario())


def test_the_same_request_several_times_at_once_is_prefilled_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            rig.gate.hold()
            runs = [await rig.ask(LONG) for _ in range(4)]
            rig.gate.open()
            received = [await events(run) for run in runs]
            assert [done(each).report.computed_tokens for each in received] == [len(LONG), 0, 0, 0]
            assert {text(each) for each in received} == {expected(rig, LONG)}

    asyncio.run(scenario())


def test_a_request_cancelled_in_decoding_stops_after_the_round_and_stores_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            rig.gate.hold(after=3)
            run = await rig.ask(PROMPT, max_tokens=1000)
            await rig.gate.reached(4)
            run.cancel()
            rig.gate.open()
            await cancelled(run)
            assert len(rig.gate.rows) == 4
            continued = PROMPT + greedy(rig.family, read(rig.family, PROMPT), 100)
            reused = done(await events(await rig.ask(continued))).report.reused_tokens
            assert reused >= len(PROMPT) + 3  # a round gives a token at least

    asyncio.run(scenario())


def test_cancelling_a_finished_request_has_no_effect() -> None:
    async def scenario() -> None:
        async with running() as rig:
            run = await rig.ask(PROMPT)
            await events(run)
            run.cancel()
            assert done(await events(await rig.ask(PROMPT))).report.reused_tokens == len(PROMPT)

    asyncio.run(scenario())


# --- failures


@pytest.mark.parametrize("passes", [0, 1, 4], ids=["in the prompt", "in the first round", "in a later round"])
def test_a_failed_request_fails_no_other(passes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            rig.gate.hold(after=passes)
            run = await rig.ask(PROMPT, max_tokens=100)
            await rig.gate.reached(passes + 1)
            waiting = await rig.ask(PROMPT)
            rig.gate.errors.append(ZeroDivisionError("in the model"))
            rig.gate.open()
            with pytest.raises(ZeroDivisionError):
                await events(run)
            received = await events(waiting)
            assert text(received) == expected(rig, PROMPT)
            assert done(received).report.reused_tokens == 0  # the cache of the one that failed was dropped
            assert rig.engine.health().running == 0

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())


def test_what_was_stored_before_a_failure_is_still_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            await events(await rig.ask(PROMPT))
            stored = PROMPT + greedy(rig.family, read(rig.family, PROMPT), 9)
            rig.gate.errors.append(ZeroDivisionError("in the model"))
            with pytest.raises(ZeroDivisionError):
                await events(await rig.ask([*stored, 5]))
            received = await events(await rig.ask([*stored, 5]))
            assert (done(received).report.source, done(received).report.reused_tokens) == ("ssd", len(stored))
            assert text(received) == expected(rig, [*stored, 5])

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())


def test_a_conversation_is_saved_while_the_next_one_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            rig.gate.hold()
            first = await rig.ask(LONG, max_tokens=1)
            second = await rig.ask(PROMPT, max_tokens=400)
            rig.gate.hold(after=60)
            await rig.gate.reached(61)
            await events(first)
            await until(lambda: rig.engine.health().bank.pending_writes == 0)
            assert rig.engine.health().running == 1, "the second request still runs: it was saved between its steps, not when idle"
            rig.gate.open()
            await events(second)

    asyncio.run(scenario())


def test_rows_are_copied_by_the_thread_that_owns_them_and_the_writer_sees_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing, writing = set[str](), set[tuple[str, type]]()

    def capture(live: LiveConversation, unit: CaptureUnit, call: Any = LiveConversation.capture) -> Record:
        capturing.add(threading.current_thread().name)
        return call(live, unit)

    def put(tier: DiskTier, record: Record, call: Any = DiskTier.put) -> None:
        writing.add((threading.current_thread().name, type(record.payload)))
        call(tier, record)

    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            await events(await rig.ask(LONG))

    monkeypatch.setattr(LiveConversation, "capture", capture)
    monkeypatch.setattr(DiskTier, "put", put)
    asyncio.run(scenario())
    assert (capturing, writing) == ({"mlx"}, {("bank-writer", memoryview)})


@dataclass
class Clock:
    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_saving_takes_a_twentieth_of_a_requests_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            captured_s: list[float] = []
            clock = Clock()

            def slowly(live: LiveConversation, unit: CaptureUnit, call: Any = LiveConversation.capture) -> Record:
                if rig.engine.worker.counts()[0]:
                    captured_s.append(clock.now_s)
                clock.now_s += 0.004
                return call(live, unit)

            def compute(rows: int) -> None:
                clock.now_s += 0.005

            monkeypatch.setattr(worker, "time", clock)
            monkeypatch.setattr(prefill_saver, "SAVING_FRAC", -1.0)
            monkeypatch.setattr(LiveConversation, "capture", slowly)
            rig.gate.hold()
            await rig.ask(LONG, max_tokens=1)
            run = await rig.ask(PROMPT, max_tokens=200)
            rig.family.before_pass = compute
            rig.gate.open()
            received = await events(run)
            assert len(captured_s) > 1
            assert min(later - sooner for sooner, later in pairwise(captured_s)) >= 0.004 / SAVING_FRAC
            assert text(received) == expected(rig, PROMPT, 200)

    asyncio.run(scenario())


def test_a_capture_that_fails_ends_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> bool:
        raise OSError("no")

    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            bank = rig.engine.worker.model().bank
            with monkeypatch.context() as patched:
                patched.setattr(bank, "capture_one", failing)
                received = await events(await rig.ask(LONG))
            assert text(received) == expected(rig, LONG)

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())


def test_a_model_that_cannot_be_loaded() -> None:
    def load() -> Any:
        raise ModelError("it is damaged")

    with pytest.raises(ModelError, match="it is damaged"):
        Worker(load).model()


# --- shutdown


def test_closing_lets_running_and_queued_requests_finish() -> None:
    async def scenario() -> None:
        rig = Rig(None)
        rig.gate.hold()
        runs = [await rig.ask(PROMPT[i:]) for i in range(3)]
        await rig.gate.reached(1)
        closing = asyncio.create_task(rig.engine.close(LIMIT_S))
        await until(lambda: rig.engine.worker.is_closing)
        with pytest.raises(BusyError, match="stopping"):
            await rig.ask(PROMPT)
        rig.gate.open()
        assert [done(await events(run)).finish for run in runs] == ["length"] * 3
        await closing
        assert not rig.engine.worker._thread.is_alive()

    asyncio.run(scenario())


def test_closing_cancels_slow_requests_and_stores_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that runs backwards: the running request is cancelled in time, and all else has as long as a busy machine needs.
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=count(0.0, -LIMIT_S).__next__))

    async def scenario() -> None:
        rig = Rig(tmp_path / "bank", max_running=1)
        rig.gate.hold(after=2)
        run = await rig.ask(LONG)
        waiting = await rig.ask(PROMPT)
        await rig.gate.reached(3)
        closing = asyncio.create_task(rig.engine.close(1.0))
        await until(lambda: getattr(run, "is_cancelled", False))
        rig.gate.open()
        await closing
        assert not rig.engine.worker._thread.is_alive()
        for each in (waiting, run):
            with pytest.raises(BusyError, match="the server is stopping"):
                await events(each)
        async with running(tmp_path / "bank") as again:
            report = done(await events(await again.ask(LONG))).report
            assert (report.source, report.reused_tokens) == ("ssd", len(LONG))

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_stuck_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StuckDisk(monkeypatch)

    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            await events(await rig.ask(PROMPT))
            await rig.engine.close(1.5)
            assert disk.num_written == 0
            disk.may_write.set()

    asyncio.run(scenario())


def test_events_for_a_closed_loop_are_dropped() -> None:
    async def ask(rig: Rig) -> None:
        rig.gate.hold()
        await rig.ask(PROMPT)
        await rig.gate.reached(1)

    async def another(rig: Rig) -> None:
        rig.gate.open()
        assert done(await events(await rig.ask(PROMPT))).finish == "length"
        await rig.engine.close(LIMIT_S)

    rig = Rig(None)
    asyncio.run(ask(rig))  # its event loop ends with it
    asyncio.run(another(rig))


# --- metrics


def test_requests_are_counted_by_how_they_ended(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running() as rig:
            await events(await rig.ask(PROMPT))
            rig.gate.errors.append(ZeroDivisionError())
            with pytest.raises(ZeroDivisionError):
                await events(await rig.ask(PROMPT[3:]))
            rig.gate.hold()
            run = await rig.ask(LONG)
            run.cancel()
            rig.gate.open()
            await cancelled(run)
            value = rig.engine.registry.get_sample_value
            assert [value("forerun_requests_total", {"outcome": name}) for name in ("length", "error", "cancelled")] == [1, 1, 1]
            assert value("forerun_prompt_tokens_total", {"kind": "computed"}) == len(PROMPT)
            assert value("forerun_completion_tokens_total") == 10
            assert value("forerun_restores_total", {"source": "cold", "layout": "contiguous"}) == 1
            assert value("forerun_requests_running") == 0

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())
