"""Log probabilities in a request's events: of the answer's tokens, by piece, and of the prompt's."""

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
REQUESTED = LogprobsRequest(2, of_prompt=False)
STOP = min(tokenizer().stop_ids)


def content(received: Sequence[Event]) -> list[Content]:
    return [event for event in received if isinstance(event, Content)]


def tokens_of(received: Sequence[Event]) -> list[TokenLogprob]:
    return [token for event in content(received) for token in event.logprobs]


def last(received: Sequence[Event]) -> Done:
    assert isinstance(received[-1], Done)
    return received[-1]


def encoded(text: str) -> list[int]:
    return tokenizer().encode(text, tenant="")


def bytewise(text: str) -> list[int]:
    """The text in tokens of one byte each."""
    single = {tokenizer().token_bytes(token): token for token in range(tokenizer().size)}
    return [single[bytes([byte])] for byte in text.encode()]


async def answered(rig: Rig, answer: list[int], **fields: object) -> list[Event]:
    """The events of a request with this answer."""
    rig.family.script = after(len(PROMPT), answer, STOP)
    return await events(await rig.ask(PROMPT, **{"max_tokens": 50, "logprobs": REQUESTED, "bank": "bypass"} | fields))


def test_each_piece_has_the_tokens_that_end_in_it(tmp_path: Path) -> None:
    answer = [*encoded("Say "), *bytewise("🙂é"), *encoded(" twice.")]

    async def scenario() -> None:
        async with running(tmp_path / "bank") as rig:
            received = await answered(rig, answer)
            assert "".join(event.text for event in content(received)) == "Say 🙂é twice."
            assert [token.text for token in tokens_of(received)] == [tokenizer().token_bytes(token) for token in answer]
            for event in content(received):
                assert b"".join(token.text for token in event.logprobs).decode() == event.text
            assert all(token.logprob == 0.0 and [each.logprob for each in token.top] == [0.0, -50.0] for token in tokens_of(received))
            assert [token.top[0].text for token in tokens_of(received)] == [token.text for token in tokens_of(received)]
            assert [token.text for token in last(received).logprobs] == [tokenizer().token_bytes(STOP)]
            assert last(received).usage.completion_tokens == len(answer) + 1
            without = await answered(rig, answer, logprobs=None)
            assert (tokens_of(without), last(without).logprobs) == ([], ())

    asyncio.run(scenario())


@pytest.mark.parametrize(("stop", "text"), [("twice", "Say it "), ("ay", "S"), (" it tw", "Say"), ("never", "Say it twice."), ("S", "")])
def test_tokens_cut_by_a_stop_string_have_no_logprobs(stop: str, text: str) -> None:
    answer = bytewise("Say it twice.")

    async def scenario() -> None:
        async with running() as rig:
            received = await answered(rig, answer, stop=(stop,))
            assert b"".join(token.text for token in tokens_of(received)).decode() == text
            for event in content(received):
                assert b"".join(token.text for token in event.logprobs).decode() == event.text
            assert len(last(received).logprobs) == (stop == "never")
            cut = await answered(rig, [*bytewise("a "), *encoded("function"), *bytewise(".")], stop=("nct",))  # through a token
            assert "".join(event.text for event in content(cut)) == "a fu"
            assert [token.text for token in tokens_of(cut)] == [b"a", b" "]

    asyncio.run(scenario())


def test_a_limit_inside_a_character_loses_no_token() -> None:
    answer = bytewise("ab🙂")

    async def scenario() -> None:
        async with running() as rig:
            received = await answered(rig, answer, max_tokens=4)
            assert [token.text for token in tokens_of(received)] == [b"a", b"b", b"\xf0", b"\x9f"]
            assert (last(received).finish, last(received).logprobs) == ("length", ())

    asyncio.run(scenario())


CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "x"}}\n</tool_call>'


def test_reasoning_and_calls_are_not_content() -> None:
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}
    chat = Chat(({"role": "user", "content": "Look."},), (tool,), {})

    async def scenario() -> None:
        async with running() as rig:
            num = await rig.engine.count_tokens(chat, tenant="")
            for split in (encoded, bytewise):
                answer = [*split("Hm, so."), *encoded("</think>"), *split("\n\nI look 🙂.\n\n"), *split(CALL)]
                rig.family.script = after(num, answer, STOP)
                received = await events(await rig.ask(PROMPT, prompt=chat, max_tokens=300, logprobs=REQUESTED, bank="bypass"))
                assert "".join(event.text for event in received if isinstance(event, Reasoning)) == "Hm, so."
                assert "".join(event.text for event in content(received)) == "I look 🙂."
                assert b"".join(token.text for token in tokens_of(received)).decode().strip() == "I look 🙂."
                assert last(received).finish == "calls"

    asyncio.run(scenario())


def test_stored_state_changes_no_probability(tmp_path: Path) -> None:
    async def scenario() -> None:
        returned = []
        for folder in (None, tmp_path / "bank", tmp_path / "bank"):
            async with running(folder) as rig:
                for _ in range(2):
                    received = await events(await rig.ask(LONG, logprobs=REQUESTED))
                    returned.append((last(received).report.source, tokens_of(received)))
                    await until(lambda engine=rig.engine: engine.health().bank.pending_writes == 0)
        assert [source for source, _ in returned] == ["cold", "ram", "cold", "ram", "ssd", "ram"]
        assert all(tokens == returned[0][1] for _, tokens in returned)
        assert len(returned[0][1]) == 10

    asyncio.run(scenario())


@pytest.mark.parametrize("bank", ["use", "bypass"])
def test_prompt_logprobs_cover_every_token(bank: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            model = rig.family
            prompt = LONG[:600]
            prompt += greedy(model, read(model, prompt), 5)
            await events(await rig.ask(prompt))
            received = await events(await rig.ask(prompt, logprobs=LogprobsRequest(1, of_prompt=True), bank=bank))
            returned = [token for event in received if isinstance(event, PromptLogprobs) for token in event.tokens]
            assert [token.text for token in returned] == [tokenizer().token_bytes(token) for token in prompt]
            assert (returned[0].logprob, returned[0].top) == (None, ())
            assert [token.logprob for token in returned[-5:]] == [0.0] * 5
            assert [token.logprob for token in returned[1:600]] == [-50.0] * 599
            first = next(i for i, event in enumerate(received) if isinstance(event, Content))
            assert all(i < first for i, event in enumerate(received) if isinstance(event, PromptLogprobs))
            report = last(received).report
            assert (report.reused_tokens, report.computed_tokens, report.source) == (0, 605, "cold")
            assert ("logprobs of the prompt" in report.reason) == (bank == "use")
            assert last(await events(await rig.ask(prompt))).report.reused_tokens == 605  # the stored state is unchanged

    asyncio.run(scenario())


def test_a_request_without_answer_tokens_prefills_the_prompt() -> None:
    async def scenario() -> None:
        async with running() as rig:
            received = await events(await rig.ask(LONG, max_tokens=0))
            assert (content(received), last(received).finish, last(received).usage.completion_tokens) == ([], "length", 0)
            assert (last(received).report.rounds, last(received).report.ttft_s > 0) == (0, True)
            again = await events(await rig.ask(LONG))
            assert last(again).report.computed_tokens == 0
            scored = await events(await rig.ask(LONG, max_tokens=0, logprobs=LogprobsRequest(0, of_prompt=True)))
            assert sum(len(event.tokens) for event in scored if isinstance(event, PromptLogprobs)) == len(LONG)
            assert last(scored).logprobs == ()

    asyncio.run(scenario())
