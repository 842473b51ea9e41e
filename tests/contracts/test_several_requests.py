"""The contract of an engine that serves several requests at once, under exact numerics: whenever they arrive and go away, each gets what it
gets alone, and what is stored is the state of the stored tokens, bit for bit.

Tests named b1 to b22, here and elsewhere, are about faults that other servers had when they began to serve several requests at once.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.decode.mixes import FAMILIES, SAMPLINGS
from tests.engine.engines import Rig, events
from tests.running import snapshots
from tests.waiting import LIMIT_S

from forerun.bank.tier.disk import DiskTier
from forerun.engine.engine import Run
from forerun.errors import ForerunError
from forerun.state.conversion import extract, extract_snapshot
from forerun.state.record import RecordInfo
from forerun.values import Content, Done, LogprobsRequest, TokenLogprob

DENSE_TOKENS = 200  # longer ones are decoded in pages
HEAD = tiny.words("head", 560)  # of several prompts
EXAMPLES = [8, pytest.param(150, marks=pytest.mark.long)]
SEEDED = sorted(name for name, sampling in SAMPLINGS.items() if sampling.temperature == 0 or sampling.seed is not None)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. begins: "" for words of its own, "head" for HEAD, "stored" for a conversation on disk."""

    words: int = 0
    tokens: int = 40
    begins: str = ""
    sampling: str = "greedy"
    seed: int = 1
    max_tokens: int = 12
    stop: tuple[str, ...] = ()
    logprobs: LogprobsRequest | None = None
    bank: str = "use"

    @property
    def own(self) -> list[int]:
        return tiny.words(("ask", self.words), self.tokens)

    def prompt(self, stored: Sequence[int]) -> list[int]:
        return [*{"": (), "head": HEAD, "stored": stored}[self.begins], *self.own]

    @property
    def fields(self) -> dict[str, Any]:
        sampling = SAMPLINGS[self.sampling]
        sampling = replace(sampling, seed=sampling.seed and self.seed)
        return {"sampling": sampling, "max_tokens": self.max_tokens, "stop": self.stop, "logprobs": self.logprobs, "bank": self.bank}


@dataclass(frozen=True, slots=True)
class Answer:
    """All that a client gets, but how it is cut in pieces."""

    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish: str
    stop_string: str
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives so many passes after the one before, and whose client goes away so many passes later, or never."""

    ask: Ask
    after: int = 0
    leaves: int | None = None


asks = st.builds(
    Ask,
    words=st.integers(0, 3),
    tokens=st.sampled_from([1, 40, 190, 230]),
    begins=st.sampled_from(["", "", "head", "stored"]),
    sampling=st.sampled_from(SEEDED),
    seed=st.integers(1, 2),
    max_tokens=st.sampled_from([1, 12, 30]),
    stop=st.sampled_from([(), (), ("a", "(*")]),
    logprobs=st.sampled_from([None, None, LogprobsRequest(2, of_prompt=False), LogprobsRequest(0, of_prompt=True)]),
    bank=st.sampled_from(["use", "use", "bypass"]),
)
arrivals = st.builds(Arrival, asks, st.integers(0, 6), st.sampled_from([None, None, None, 0, 1, 2, 5]))


def rig(name: str, folder: Path) -> Rig:
    return Rig(folder, model=FAMILIES[name], dense_tokens=DENSE_TOKENS, depths=(0, 1, 2, 3))


async def received(run: Run) -> Answer:
    found = await events(run)
    done = found[-1]
    assert isinstance(done, Done)
    pieces = [event for event in found if isinstance(event, Content)]
    logprobs = tuple(chain(*(piece.logprobs for piece in pieces), done.logprobs))
    return Answer("".join(p.text for p in pieces), logprobs, done.finish, done.stop_string, done.usage.completion_tokens)


@cache
def conversation(name: str) -> tuple[TemporaryDirectory[str], list[int]]:
    """A folder with the bank of a conversation in its subfolder "bank", and the conversation's tokens."""
    folder = TemporaryDirectory()

    async def scenario() -> None:
        one = rig(name, Path(folder.name) / "bank")
        await received(await one.ask(tiny.words("stored", 300), max_tokens=20))
        await one.engine.close(LIMIT_S)

    asyncio.run(scenario())
    return folder, list(max((info.tokens for info, _ in records(Path(folder.name) / "bank")), key=len))


def records(folder: Path) -> list[tuple[RecordInfo, memoryview]]:
    """All of a bank's folder."""
    tier = DiskTier.view(folder)
    found = [(info, tier.get(info.key).payload) for info in tier.index.inventory()]
    tier.close()
    return found


def serve(name: str, arrivals: Sequence[Arrival]) -> tuple[list[Answer | None], list[tuple[RecordInfo, memoryview]]]:
    """The answers of all, None where the client went away in time, and what the bank holds then. It held a conversation before."""
    folder, tokens = conversation(name)
    with TemporaryDirectory() as copy:
        shutil.copytree(folder.name, copy, dirs_exist_ok=True)
        answers = asyncio.run(_served(rig(name, Path(copy) / "bank"), arrivals, tokens))
        return answers, records(Path(copy) / "bank")


async def _served(one: Rig, arrivals: Sequence[Arrival], tokens: list[int]) -> list[Answer | None]:
    at = [sum(arrival.after for arrival in arrivals[: i + 1]) for i in range(len(arrivals))]
    leaving = [(at[i] + arrival.leaves, i) for i, arrival in enumerate(arrivals) if arrival.leaves is not None]
    runs, now = dict[int, Run](), 0
    one.gate.hold()
    for when, i, is_leaving in sorted([*((when, i, False) for i, when in enumerate(at)), *((when, i, True) for when, i in leaving)]):
        if when > now:
            await one.gate.let(when - now, one.is_idle)
            now = when
        if is_leaving:
            runs[i].cancel()
        else:
            ask = arrivals[i].ask
            runs[i] = await one.ask(ask.prompt(tokens), **ask.fields)
    one.gate.open()
    answers = [await _received_unless_cancelled(runs[i]) for i in range(len(arrivals))]
    await one.engine.close(LIMIT_S)
    assert one.engine.failure == ""
    return answers


async def _received_unless_cancelled(run: Run) -> Answer | None:
    try:
        return await received(run)
    except ForerunError as error:
        if str(error) != "the client disconnected":
            raise
        return None


@cache
def alone(name: str, ask: Ask) -> tuple[Answer, tuple[int, ...]]:
    """The answer without other requests, and the tokens of the longest state that begins with its prompt."""
    (answer,), found = serve(name, [Arrival(ask)])
    assert answer is not None
    prompt = tuple(ask.prompt(conversation(name)[1]))
    return answer, max((info.tokens for info, _ in found if info.tokens[: len(prompt)] == prompt), key=len, default=())


def check_bytes(name: str, found: Sequence[tuple[RecordInfo, memoryview]]) -> None:
    """Each record is, bit for bit, that of a prefill of its tokens."""
    whole = {info.tokens for info, _ in found}
    for tokens in [t for t in whole if not any(len(t) < len(o) and o[: len(t)] == t for o in whole)]:
        own = [(info, payload) for info, payload in found if tokens[: len(info.tokens)] == info.tokens]
        cache, taken = snapshots(FAMILIES[name], list(tokens), {len(info.tokens) for info, _ in own})
        at = {snapshot.position: snapshot for snapshot in taken}
        for info, payload in own:
            assert info.start == 0
            num = len(info.tokens)
            assert payload == (extract(cache, 0, num) if info.kind == "segment" else extract_snapshot(at[num])), (info.kind, num)


def check(name: str, arrivals: Sequence[Arrival]) -> None:
    answers, found = serve(name, arrivals)
    ends = {info.tokens for info, _ in found if info.kind == "snapshot"}
    for arrival, answer in zip(arrivals, answers, strict=True):
        expected, end = alone(name, arrival.ask)
        assert answer == expected or (answer is None and arrival.leaves is not None), arrival
        assert answer is None or not end or end in ends, arrival
    allowed = [tuple(conversation(name)[1]), *(alone(name, arrival.ask)[1] for arrival in arrivals)]
    assert all(any(tokens == whole[: len(tokens)] for whole in allowed) for tokens in ends), "a state that no answer has"
    check_bytes(name, found)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", FAMILIES)
def test_any_mix_of_requests_gives_each_what_it_gets_alone(name: str, examples: int) -> None:
    @settings(max_examples=examples, derandomize=examples < 100)
    @given(mix=st.lists(arrivals, min_size=2, max_size=6))
    def run(mix: list[Arrival]) -> None:
        check(name, mix)

    run()


@pytest.mark.parametrize("name", FAMILIES)
def test_b1_b4_b15_requests_at_once_get_what_they_get_one_after_the_other(name: str) -> None:
    """All prompts are waiting when the first pass begins; they differ in length, sampling and beginning."""
    samplings = ["greedy", "seeded", "seeded, few", "greedy, penalised"]
    asks = [Ask(i, tokens, sampling=samplings[i]) for i, tokens in enumerate((1, 40, 190, 230))]
    check(name, [Arrival(ask) for ask in [*asks, replace(asks[1], begins="head"), replace(asks[2], begins="head")]])


@pytest.mark.parametrize("name", FAMILIES)
def test_b2_a_batch_that_became_empty_serves_the_next_requests(name: str) -> None:
    leaves = Arrival(Ask(0), leaves=2)
    check(name, [leaves, replace(leaves, leaves=1), Arrival(Ask(1), after=30), Arrival(Ask(2))])


@pytest.mark.parametrize("leaves", range(9))
@pytest.mark.parametrize("name", FAMILIES)
def test_b18_a_client_that_goes_away_in_any_pass_changes_no_other_answer(name: str, leaves: int) -> None:
    """In its prefill of two chunks, in a round, or after the last one."""
    check(name, [Arrival(Ask(0, max_tokens=30)), Arrival(Ask(1, 50, "head", max_tokens=5), after=2, leaves=leaves), Arrival(Ask(2))])


@pytest.mark.parametrize("name", FAMILIES)
def test_b22_a_conversation_restored_from_disk_joins_a_running_batch(name: str) -> None:
    async def scenario() -> None:
        folder, tokens = conversation(name)
        with TemporaryDirectory() as copy:
            shutil.copytree(folder.name, copy, dirs_exist_ok=True)
            one = rig(name, Path(copy) / "bank")
            one.gate.hold(after=4)
            other = await one.ask(Ask(0).own, max_tokens=200)
            await one.gate.reached(5)
            restored = await one.ask([*tokens, *Ask(1).own], max_tokens=30)
            one.gate.open()
            found = (await events(restored))[-1]
            assert isinstance(found, Done)
            assert (found.report.source, found.report.reused_tokens) == ("ssd", len(tokens))
            assert found.report.sequences_per_round == 2
            await events(other)
            await one.engine.close(LIMIT_S)

    asyncio.run(scenario())
    check(name, [Arrival(Ask(0, max_tokens=30)), Arrival(Ask(1, begins="stored", max_tokens=30), after=5)])
