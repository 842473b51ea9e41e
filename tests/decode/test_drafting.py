"""Under exact numerics drafting changes only the time: tokens, logits and state are those of plain decoding, bit for bit.

24 prompts x 48 tokens at every depth, from state in RAM and on SSD, ended at random positions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest
from tests import tiny
from tests.decode.drafting import SEEDED, TextPrompt, check, eager, generation, plainly, run
from tests.decode.guessing import DraftRecorder, GuessingFamily, RecordingFamily
from tests.running import differing, read
from tests.talking import opened

from forerun.bank.bank import Bank, FinishedTurn
from forerun.decode.depth import DepthPolicy
from forerun.decode.draft_stats import Round
from forerun.errors import NumericsError
from forerun.state.cache import lend
from forerun.state.layout import Contiguous
from forerun.values import GREEDY, Source

PROMPTS, TOKENS = range(24), 48
DEPTHS = {str(depth): (depth,) for depth in (0, 1, 2, 3, 7)} | {"auto": tuple(range(4))}


@cache
def plain(number: int) -> TextPrompt:
    """The expected answer to a prompt, by its number."""
    prompt = tiny.words(("prompt", number), random.Random(number).choice([3, 40, 120, 230, 250, 500]))
    return plainly(tiny.family(), prompt, SEEDED if number % 3 == 0 else GREEDY, TOKENS)


def remember_prompts(bank: Bank) -> None:
    for wanted in map(plain, PROMPTS):
        state = read(tiny.family(), wanted.prompt)
        bank.remember(state, wanted.prompt, [state.snapshot()], FinishedTurn(str(wanted.prompt), "", 1, 0, 1))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the states of all prompts."""
    folder = tmp_path_factory.mktemp("bank")
    bank = opened(folder)
    remember_prompts(bank)
    assert bank.flush(60)
    bank.close()
    return folder


@pytest.fixture
def ssd(kept: Path) -> Iterator[Bank]:
    """A bank as after a restart."""
    bank = opened(kept)
    yield bank
    bank.close()


@pytest.fixture(scope="module")
def ram() -> Bank:
    """A bank that has the prompts, and then the answers of each test."""
    bank = opened(None)
    remember_prompts(bank)
    return bank


class ChangingDepth(DepthPolicy):
    """Another depth every round."""

    def choose(self, context_tokens: int, limit: int, kind: str = "") -> int:
        return min(context_tokens * 5 % 8, limit)


@pytest.mark.parametrize("depth", DEPTHS)
def test_drafting_from_ram_is_plain_decoding(ram: Bank, depth: str) -> None:
    check_all(ram, "ram", DepthPolicy(DEPTHS[depth]), random.Random(depth))


@pytest.mark.parametrize("depth", DEPTHS)
def test_drafting_from_ssd_is_plain_decoding(ssd: Bank, depth: str) -> None:
    check_all(ssd, "ssd", DepthPolicy(DEPTHS[depth]), random.Random(depth))


def test_any_depth_after_any_other(ram: Bank) -> None:
    assert check_all(ram, "ram", ChangingDepth(range(8)), random.Random(0)) > 300


def check_all(bank: Bank, source: Source, policy: DepthPolicy, rng: random.Random) -> int:
    """Draft after all prompts, from state in `source`, and check. Returns how many drafts were accepted."""
    accepted = 0
    for wanted in map(plain, PROMPTS):
        found = bank.restore(wanted.prompt, tenant="", session=None, layout=Contiguous(), headroom_tokens=TOKENS)
        assert (found.source, found.reused_tokens) == (source, len(wanted.prompt))
        family = GuessingFamily(tiny.family(), wanted.tokens, rng.choice([0.5, 0.9, 1.0]), rng.random())
        drafted = run(family, found.cache, wanted, policy, rng)
        check(drafted, found.cache, wanted)
        accepted += drafted.accepted
        if source == "ram":
            snapshots = [*found.snapshots, found.cache.snapshot()]
            bank.remember(found.cache, drafted.stored, snapshots, FinishedTurn(found.session, "", 1, 0, 1))
    return accepted


class FailingFamily(GuessingFamily):
    """Produces NaN after some rounds."""

    def head(self, hidden: mx.array) -> mx.array:
        logits = super().head(hidden)
        return logits * float("nan") if len(self.logits) > 5 else logits


def test_a_failed_round_is_not_observed_and_breaks_the_cache() -> None:
    wanted, policy = plain(1), DepthPolicy((2,))
    state = read(tiny.family(), wanted.prompt)
    family = FailingFamily(tiny.family(), wanted.tokens, 1.0, 0)
    family.generation = answer = generation(eager(family), state, wanted.prompt, wanted.sampling, policy, max_tokens=TOKENS)
    pieces = iter(answer)
    for _ in range(5):
        next(pieces)
    before = policy.acceptance.chances
    with pytest.raises(NumericsError):
        next(pieces)
    assert policy.acceptance.chances == before
    assert (answer.draft_stats.rounds, state.is_broken) == (4, True)


def test_no_draft_is_made_that_cannot_become_part_of_the_answer() -> None:
    wanted = plain(1)
    for max_tokens in (1, 2, 3, 5):
        state = read(tiny.family(), wanted.prompt)
        answer = generation(eager(tiny.family()), state, wanted.prompt, wanted.sampling, DepthPolicy((7,)), max_tokens=max_tokens)
        assert len(list(answer)) > 0
        assert answer.draft_stats.deepest == max(0, max_tokens - 2)
        assert answer.tokens == wanted.tokens[:max_tokens]


def test_a_model_without_a_draft_head_decodes_plainly() -> None:
    family = tiny.family()
    headless = RecordingFamily(family)
    headless.spec = replace(family.spec, draft_layers=())
    prompt = tiny.words("headless", 20)
    state = read(headless, prompt)
    answer = generation(eager(headless), state, prompt, GREEDY, DepthPolicy((0,)), max_tokens=150)
    assert len(list(answer)) == 150
    assert answer.store() == [*prompt, *answer.tokens[:-1]]


def test_a_long_plain_answer_completes_its_draft_rows() -> None:
    prompt = tiny.words("long", 30)
    state = read(tiny.family(), prompt)
    answer = generation(eager(tiny.family()), state, prompt, GREEDY, DepthPolicy((0,)), max_tokens=150)
    assert len(list(answer)) == 150
    assert differing(state, read(tiny.family(), answer.store())) == []


def drafts_of(prompt: list[int], policy: DepthPolicy, max_tokens: int) -> tuple[dict[tuple[int, int], mx.array], list[int]]:
    family, state = DraftRecorder(tiny.family()), read(tiny.family(), prompt)
    family.generation = generation(eager(family), state, prompt, GREEDY, policy, max_tokens=max_tokens)
    assert len(list(family.generation)) > 0
    return family.drafts, family.generation.tokens


def test_what_is_drafted_does_not_depend_on_the_rounds_before() -> None:
    prompt = tiny.words("watched", 20)
    seen, tokens = drafts_of(prompt, ChangingDepth(range(8)), TOKENS)
    starts = {given for given, _ in seen}
    assert len(starts) > 20
    for start in sorted(starts)[::5]:
        fresh, _ = drafts_of([*prompt, *tokens[: start - 1]], DepthPolicy((7,)), TOKENS - start + 1)
        own = {depth: logits for (given, depth), logits in seen.items() if given == start}
        assert all(mx.array_equal(logits, fresh[1, depth]) for depth, logits in own.items())


class RecordingPolicy(DepthPolicy):
    """Two rounds of each depth; records them."""

    def __init__(self) -> None:
        super().__init__(range(8))
        self.observed: list[Round] = []

    def choose(self, context_tokens: int, limit: int, kind: str = "") -> int:
        return min(len(self.observed) // 2 % 3, limit)

    def observe(self, context_tokens: int, done: Round, kind: str = "", others: Sequence[Round] = ()) -> None:
        self.observed.append(done)


def test_a_round_is_timed_after_one_of_the_same_depth() -> None:
    policy, state = RecordingPolicy(), read(tiny.family(), plain(1).prompt)
    assert len(list(generation(eager(tiny.family()), state, plain(1).prompt, GREEDY, policy, max_tokens=TOKENS))) > 12
    for i, done in enumerate(policy.observed[:12]):
        assert (done.seconds is not None and done.seconds > 0) == (i % 2 == 1)


@pytest.mark.parametrize("num", [3, 7])
def test_a_draft_attends_to_those_before_it_as_to_state(num: int) -> None:
    prompt = tiny.words("chain", 40)
    scratch, kept = draft_chain(prompt, num, keep=0), draft_chain(prompt, num, keep=1)
    assert all(mx.array_equal(one, other) for one, other in zip(scratch, kept, strict=True))


def draft_chain(prompt: list[int], num: int, keep: int) -> list[mx.array]:
    """Hidden vectors of drafts, each from the one before it, which was kept or not."""
    family, state = tiny.family(), read(tiny.family(), prompt)
    made = [state.hidden[None]]
    with lend([state], family.numerics) as view:
        for token in range(num):
            made.append(family.draft(made[-1], mx.array([token]), [1], view))
            if keep:
                view.keep_draft([keep])
    return made
