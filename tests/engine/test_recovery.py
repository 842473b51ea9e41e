"""A fault in a pass that several requests share: only the guilty one fails, and the others get the answers they get without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.engine.engines import Rig, events
from tests.fake_family import TOKEN, FakeFamily, scattered
from tests.running import greedy, read
from tests.talking import tokenizer
from tests.waiting import LIMIT_S, until

from forerun.engine.engine import Run
from forerun.engine.request import Request
from forerun.errors import NumericsError
from forerun.models.base import Family
from forerun.state.cache import View
from forerun.values import Content, Done

PROMPTS = [[(11 * i + i // 3 + 5 * j) % 6000 for i in range(40 + 9 * j)] for j in range(3)]
GUILTY = 17
CODEWORDS = [[33 + 3 * i, 34 + 3 * i, 35 + 3 * i] for i in range(8)]


class FaultyFamily(FakeFamily):
    """Repeats the last token of a prompt. A round with the token GUILTY in it raises; or that row's logits are no numbers."""

    def __init__(self, *, raises: bool) -> None:
        super().__init__(lambda position, token, total: token, tokenizer().size, wrong_every=1 << 20)
        self.raises = raises

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        if self.raises and max(spans) <= 8 and GUILTY in tokens.tolist():
            raise ZeroDivisionError("the guilty token")
        return super().forward(tokens, spans, view)

    def head(self, hidden: mx.array) -> mx.array:
        logits = super().head(hidden)
        guilty = np.array(hidden)[:, TOKEN] == GUILTY
        return logits if self.raises else mx.where(mx.array(guilty)[:, None] & (hidden[:, :1] > 40), mx.nan, logits)


def with_rig(scenario: Any, family: Family | None = None, folder: Path | None = None, **options: Any) -> None:
    async def run() -> None:
        rig = Rig(folder, model=family, **options)
        try:
            await scenario(rig)
            assert rig.engine.failure == ""
            await until(rig.is_idle)
        finally:
            rig.gate.open()
            await rig.engine.close(LIMIT_S)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    with caplog.at_level(logging.CRITICAL):
        yield


async def answered(run: Run) -> tuple[str, Done]:
    found = await events(run)
    assert isinstance(found[-1], Done)
    return "".join(event.text for event in found if isinstance(event, Content)), found[-1]


def expected(rig: Rig, prompt: list[int], num: int) -> str:
    return tokenizer().decode(greedy(rig.family, read(rig.family, prompt), num))


class OnceFaultyFamily(FakeFamily):
    """Fails once: in the `at`-th pass of the target, or of the draft head, that three sequences share."""

    def __init__(self, at: int, *, in_draft: bool) -> None:
        super().__init__(scattered(6000), tokenizer().size)
        self._left, self._in_draft = at, in_draft

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self._count(spans, is_draft=False)
        return super().forward(tokens, spans, view)

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self._count(spans, is_draft=True)
        return super().draft(hidden, tokens, spans, view)

    def _count(self, spans: Sequence[int], *, is_draft: bool) -> None:
        self._left -= is_draft == self._in_draft and len(spans) == len(PROMPTS)
        if self._left == 0:
            self._left = -1
            raise ZeroDivisionError("once")


@pytest.mark.parametrize(("at", "in_draft"), [(1, False), (2, False), (5, False), (1, True), (2, True)])
@pytest.mark.parametrize("bank", ["use", "bypass"])
def test_b10_after_a_fault_in_a_shared_pass_all_get_the_answers_they_get_without_it(
    at: int, in_draft: bool, bank: str, tmp_path: Path
) -> None:
    family = OnceFaultyFamily(at, in_draft=in_draft)

    async def scenario(rig: Rig) -> None:
        rig.gate.hold()
        runs = [await rig.ask(prompt, max_tokens=60, bank=bank) for prompt in PROMPTS]
        rig.gate.open()
        for run, prompt in zip(runs, PROMPTS, strict=True):
            text, done = await answered(run)
            assert (text, done.usage.completion_tokens) == (expected(rig, prompt, 60), 60)
        assert family._left < 0, "there was no fault"
        for prompt in PROMPTS:  # what is stored is what was emitted: the family checks its rows against all tokens
            stored = [*prompt, *greedy(rig.family, read(rig.family, prompt), 59)]
            text, done = await answered(await rig.ask([*stored, 5]))
            assert text == expected(rig, [*stored, 5], 10)
            assert done.report.reused_tokens == (len(stored) if bank == "use" else 0)

    with_rig(scenario, family, tmp_path / "bank")


def test_b10_of_a_shared_pass_that_always_fails_only_the_guilty_request_fails(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        prompts = [[*PROMPTS[0], 40], [*PROMPTS[1], GUILTY], [*PROMPTS[2], 41]]
        rig.gate.hold()
        runs = [await rig.ask(prompt, max_tokens=30) for prompt in prompts]
        rig.gate.open()
        with pytest.raises(ZeroDivisionError, match="the guilty token"):
            await events(runs[1])
        for run, token in ((runs[0], 40), (runs[2], 41)):
            text, done = await answered(run)
            assert (text, done.finish) == (tokenizer().decode([token] * 30), "length")

    with_rig(scenario, FaultyFamily(raises=True), tmp_path / "bank")


def test_b10_a_fault_in_a_prompt_ends_no_request_that_decodes(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.gate.hold(after=6)
        decodes = await rig.ask(PROMPTS[0], max_tokens=60)
        await rig.gate.reached(7)
        prefills = await rig.ask(list(range(1200)))
        while 512 not in rig.gate.rows:
            await rig.gate.let(1, rig.is_idle)
        rig.gate.errors.append(ZeroDivisionError("in the prompt"))
        rig.gate.open()
        with pytest.raises(ZeroDivisionError, match="in the prompt"):
            await events(prefills)
        assert (await answered(decodes))[0] == expected(rig, PROMPTS[0], 60)

    with_rig(scenario, folder=tmp_path / "bank")


@pytest.mark.parametrize("num_guilty", [2, 3])
def test_b10_several_guilty_requests_one_after_the_other_end_no_other(num_guilty: int) -> None:
    async def scenario(rig: Rig) -> None:
        rig.gate.hold(after=4)
        innocent = await rig.ask([*PROMPTS[0], 40], max_tokens=200)
        for i in range(num_guilty):
            guilty = await rig.ask([*PROMPTS[1][i:], GUILTY], max_tokens=30)
            await rig.gate.let(3, rig.is_idle)
            rig.gate.hold(after=20)
            with pytest.raises(ZeroDivisionError, match="the guilty token"):
                await events(guilty)
        rig.gate.open()
        assert (await answered(innocent))[0] == tokenizer().decode([40] * 200)

    with_rig(scenario, FaultyFamily(raises=True))


def test_numbers_of_one_request_that_are_not_finite_end_it_alone(tmp_path: Path) -> None:
    family = FaultyFamily(raises=False)

    async def scenario(rig: Rig) -> None:
        prompts = [[*PROMPTS[0], 40], [*PROMPTS[1], 42], [*PROMPTS[2], 41]]
        family.script = lambda position, token, total: GUILTY if token == 42 and position > len(PROMPTS[1]) + 5 else token
        rig.gate.hold()
        runs = [await rig.ask(prompt, max_tokens=30) for prompt in prompts]
        rig.gate.open()
        with pytest.raises(NumericsError, match="not numbers"):
            await events(runs[1])
        for run, token in ((runs[0], 40), (runs[2], 41)):
            text, done = await answered(run)
            assert text == tokenizer().decode([token] * 30)
            assert done.report.sequences_per_round is not None
            assert done.report.sequences_per_round > 1
        passes = len([rows for rows in rig.gate.rows if rows > 9])
        assert passes == 3, "a prompt was computed again"

    with_rig(scenario, family, tmp_path / "bank")


@pytest.mark.parametrize("num", range(2, 9))
def test_b3_every_answer_has_its_own_codeword_only(num: int) -> None:
    """Each prompt ends with a word of its own, which the model repeats."""
    family = FakeFamily(lambda position, token, total: token + 1 if token % 3 < 2 else token - 2, tokenizer().size, wrong_every=4)

    async def scenario(rig: Rig) -> None:
        rig.gate.hold()
        runs = [await rig.ask([*PROMPTS[i % 3], *CODEWORDS[i]], max_tokens=30) for i in range(num)]
        rig.gate.open()
        for run, word in zip(runs, CODEWORDS, strict=False):
            assert (await answered(run))[0] == tokenizer().decode(word * 10)

    with_rig(scenario, family)


def test_a_request_that_is_cancelled_while_its_state_is_computed_again_frees_its_slot() -> None:
    async def scenario(rig: Rig) -> None:
        rig.gate.hold()
        runs = [await rig.ask(prompt, max_tokens=400) for prompt in PROMPTS]
        await rig.gate.let(8, rig.is_idle)
        rig.gate.errors.append(ZeroDivisionError("once"))
        await rig.gate.let(1, rig.is_idle)
        runs[1].cancel()
        rig.gate.open()
        with pytest.raises(Exception, match="the client disconnected"):
            await events(runs[1])
        for i in (0, 2):
            assert (await answered(runs[i]))[0] == expected(rig, PROMPTS[i], 400)

    with_rig(scenario, FakeFamily(scattered(6000), tokenizer().size))


def test_a_conversation_removed_before_its_state_is_computed_again_is_not_stored(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.gate.hold()
        runs = [await rig.ask(prompt, max_tokens=200, session=f"s{i}") for i, prompt in enumerate(PROMPTS)]
        await rig.gate.let(8, rig.is_idle)
        removing = asyncio.create_task(rig.engine.sessions.remove("", "s1"))
        while not removing.done():
            await rig.gate.let(1, rig.is_idle)
        rig.gate.errors.append(ZeroDivisionError("once"))
        rig.gate.open()
        for run in runs:
            await answered(run)
        assert isinstance(runs[1], Request)
        assert runs[1].running.is_removed
        await until(rig.is_idle)
        assert {session.id for session in await rig.engine.sessions.all("", 10)} == {"s0", "s2"}

    with_rig(scenario, folder=tmp_path / "bank")
