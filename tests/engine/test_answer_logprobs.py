"""Tokens and their probabilities in a request's events: which go out with which text, and what of a prompt is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.engine.engines import Rig, events, running
from tests.fake_family import after
from tests.running import greedy, read
from tests.talking import tokenizer
from tests.waiting import until

from forerun.values import Chat, Content, Done, Event, LogprobsRequest, PromptLogprobs, Reasoning, TokenLogprob

PROMPT = [(11 * i + i // 3) % 6000 for i in range(40)]
LONG = [(13 * i + i // 7) % 6000 for i in range(700)]
ASKED = LogprobsRequest(2, of_prompt=False)
STOP = min(tokenizer().stop_ids)


def content(told: Sequence[Event]) -> list[Content]:
    return [event for event in told if isinstance(event, Content)]


def tokens_of(told: Sequence[Event]) -> list[TokenLogprob]:
    return [token for event in content(told) for token in event.logprobs]


def last(told: Sequence[Event]) -> Done:
    assert isinstance(told[-1], Done)
    return told[-1]


def written(text: str) -> list[int]:
    return tokenizer().encode(text, tenant="")


def bytewise(text: str) -> list[int]:
    """The text in tokens of a byte each."""
    single = {tokenizer().token_bytes(token): token for token in range(tokenizer().size)}
    return [single[bytes([byte])] for byte in text.encode()]


async def answered(rig: Rig, answer: list[int], **asked: object) -> list[Event]:
    """The events of a request whose answer is this."""
    rig.family.script = after(len(PROMPT), answer, STOP)
    return await events(await rig.ask(PROMPT, **{"max_tokens": 50, "logprobs": ASKED, "bank": "bypass"} | asked))


def test_each_piece_has_the_tokens_that_end_in_it(tmp_path: Path) -> None:
    answer = [*written("Say "), *bytewise("🙂é"), *written(" twice.")]

    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            told = await answered(rig, answer)
            assert "".join(event.text for event in content(told)) == "Say 🙂é twice."
            assert [token.text for token in tokens_of(told)] == [tokenizer().token_bytes(token) for token in answer]
            for event in content(told):
                assert b"".join(token.text for token in event.logprobs).decode() == event.text
            assert all(token.logprob == 0.0 and [each.logprob for each in token.top] == [0.0, -50.0] for token in tokens_of(told))
            assert [token.top[0].text for token in tokens_of(told)] == [token.text for token in tokens_of(told)]
            assert [token.text for token in last(told).logprobs] == [tokenizer().token_bytes(STOP)]
            assert last(told).usage.completion_tokens == len(answer) + 1
            unasked = await answered(rig, answer, logprobs=None)
            assert (tokens_of(unasked), last(unasked).logprobs) == ([], ())

    asyncio.run(scenario())


@pytest.mark.parametrize(("stop", "text"), [("twice", "Say it "), ("ay", "S"), (" it tw", "Say"), ("never", "Say it twice."), ("S", "")])
def test_what_a_stop_string_takes_away_is_not_told(stop: str, text: str) -> None:
    answer = bytewise("Say it twice.")

    async def scenario() -> None:
        async with running() as rig:
            told = await answered(rig, answer, stop=(stop,))
            assert b"".join(token.text for token in tokens_of(told)).decode() == text
            for event in content(told):
                assert b"".join(token.text for token in event.logprobs).decode() == event.text
            assert len(last(told).logprobs) == (stop == "never")
            cut = await answered(rig, [*bytewise("a "), *written("function"), *bytewise(".")], stop=("nct",))  # through a token
            assert "".join(event.text for event in content(cut)) == "a fu"
            assert [token.text for token in tokens_of(cut)] == [b"a", b" "]

    asyncio.run(scenario())


def test_a_limit_inside_a_character_loses_no_token() -> None:
    answer = bytewise("ab🙂")

    async def scenario() -> None:
        async with running() as rig:
            told = await answered(rig, answer, max_tokens=4)
            assert [token.text for token in tokens_of(told)] == [b"a", b"b", b"\xf0", b"\x9f"]
            assert (last(told).finish, last(told).logprobs) == ("length", ())

    asyncio.run(scenario())


CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "x"}}\n</tool_call>'


def test_reasoning_and_calls_are_not_content() -> None:
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}
    chat = Chat(({"role": "user", "content": "Look."},), (tool,), {})

    async def scenario() -> None:
        async with running() as rig:
            num = await rig.engine.count_tokens(chat, tenant="")
            for split in (written, bytewise):
                answer = [*split("Hm, so."), *written("</think>"), *split("\n\nI look 🙂.\n\n"), *split(CALL)]
                rig.family.script = after(num, answer, STOP)
                told = await events(await rig.ask(PROMPT, prompt=chat, max_tokens=300, logprobs=ASKED, bank="bypass"))
                assert "".join(event.text for event in told if isinstance(event, Reasoning)) == "Hm, so."
                assert "".join(event.text for event in content(told)) == "I look 🙂."
                assert b"".join(token.text for token in tokens_of(told)).decode().strip() == "I look 🙂."
                assert last(told).finish == "calls"

    asyncio.run(scenario())


def test_stored_state_changes_no_probability(tmp_path: Path) -> None:
    async def scenario() -> None:
        found = []
        for folder in (None, tmp_path / "bank", tmp_path / "bank"):
            async with running(folder) as rig:
                for _ in range(2):
                    told = await events(await rig.ask(LONG, logprobs=ASKED))
                    found.append((last(told).report.source, tokens_of(told)))
                    await until(lambda engine=rig.engine: engine.health().bank.pending_writes == 0)
        assert [source for source, _ in found] == ["cold", "ram", "cold", "ssd", "ssd", "ssd"]
        assert all(tokens == found[0][1] for _, tokens in found)
        assert len(found[0][1]) == 10

    asyncio.run(scenario())


@pytest.mark.parametrize("bank", ["use", "bypass"])
def test_a_prompt_is_told_from_its_first_token_on(bank: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            model = rig.family
            prompt = LONG[:600]
            prompt += greedy(model, read(model, prompt), 5)
            await events(await rig.ask(prompt))
            told = await events(await rig.ask(prompt, logprobs=LogprobsRequest(1, of_prompt=True), bank=bank))
            found = [token for event in told if isinstance(event, PromptLogprobs) for token in event.tokens]
            assert [token.text for token in found] == [tokenizer().token_bytes(token) for token in prompt]
            assert (found[0].logprob, found[0].top) == (None, ())
            assert [token.logprob for token in found[-5:]] == [0.0] * 5
            assert [token.logprob for token in found[1:600]] == [-50.0] * 599
            first = next(i for i, event in enumerate(told) if isinstance(event, Content))
            assert all(i < first for i, event in enumerate(told) if isinstance(event, PromptLogprobs))
            report = last(told).report
            assert (report.reused_tokens, report.computed_tokens, report.source) == (0, 605, "cold")
            assert ("logprobs of the prompt" in report.reason) == (bank == "use")
            assert last(await events(await rig.ask(prompt))).report.reused_tokens == 605  # what was stored before is as it was

    asyncio.run(scenario())


def test_a_prompt_may_be_read_for_its_own_sake() -> None:
    async def scenario() -> None:
        async with running() as rig:
            told = await events(await rig.ask(LONG, max_tokens=0))
            assert (content(told), last(told).finish, last(told).usage.completion_tokens) == ([], "length", 0)
            assert (last(told).report.rounds, last(told).report.ttft_s > 0) == (0, True)
            again = await events(await rig.ask(LONG))
            assert last(again).report.computed_tokens == 0
            scored = await events(await rig.ask(LONG, max_tokens=0, logprobs=LogprobsRequest(0, of_prompt=True)))
            assert sum(len(event.tokens) for event in scored if isinstance(event, PromptLogprobs)) == len(LONG)
            assert last(scored).logprobs == ()

    asyncio.run(scenario())
