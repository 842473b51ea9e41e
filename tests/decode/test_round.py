"""Rounds under exact numerics: whatever is drafted, the tokens, the logits and the state of plain decoding, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import mlx.core as mx
import pytest
from tests import tiny
from tests.fake_family import FakeFamily, scattered
from tests.running import differing, logits, read, step
from tests.talking import SEEDED

from forerun.decode import round as round_module
from forerun.decode.compiled import StepTable
from forerun.decode.round import Rounds
from forerun.errors import NumericsError
from forerun.models.base import Family
from forerun.state.cache import Cache, lend
from forerun.values import GREEDY, Sampling

FAMILY = tiny.family()
MIXED = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)  # some of its drafts are right
PROMPT = tiny.words("round", 250)
DEPTHS = [0, 1, 2, 3, 7]
NUM = 16
SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "seeded, usual": replace(SEEDED, temperature=0.8, top_p=0.95, top_k=20, min_p=0.02),
    "greedy, penalised": replace(GREEDY, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.4),
    "seeded, penalised": replace(SEEDED, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.6),
}


def plain(family: Family, prompt: list[int], sampling: Sampling, num: int) -> tuple[list[int], Cache[Any]]:
    """`num` tokens, each by a round without drafts on a state from one forward; and the state after the last but one."""
    cache = read(family, prompt)
    tokens: list[int] = []
    while len(tokens) < num:
        if tokens:
            step(family, cache, tokens[-1:])
        rounds = Rounds(StepTable(family, eager_reason="test"), cache, prompt, sampling)
        if tokens:
            rounds.append(tokens)
        tokens.append(rounds.first())
    return tokens, cache


def drafted(family: Family, prompt: list[int], sampling: Sampling, num: int, depths: Callable[[], int]) -> tuple[list[int], Cache[Any]]:
    """The same by rounds of these depths."""
    cache = read(family, prompt)
    tokens: list[int] = []
    rounds = Rounds(StepTable(family, eager_reason="test"), cache, prompt, sampling)

    def take(new: list[int]) -> int:
        kept = new[: num - len(tokens)]
        tokens.extend(kept)
        rounds.append(kept)
        return len(kept)

    take([rounds.first()])
    while len(tokens) < num:
        rounds.run(depths(), take)
    rounds.complete_draft_rows()
    return tokens, cache


@cache
def plain_of(rule: str) -> tuple[list[int], Cache[Any]]:
    """Shared: do not modify it."""
    return plain(FAMILY, PROMPT, SAMPLINGS[rule], NUM)


@pytest.mark.parametrize("rule", SAMPLINGS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_drafts_change_no_token_and_no_bit(rule: str, depth: int) -> None:
    expected, state = plain_of(rule)
    tokens, cache = drafted(FAMILY, PROMPT, SAMPLINGS[rule], NUM, lambda: depth)
    assert tokens == expected
    assert differing(cache, state) == []
    assert mx.array_equal(logits(FAMILY, cache), logits(FAMILY, state))


def test_drafts_that_are_accepted_change_nothing_either() -> None:
    """The bundled model's own drafts: many are accepted."""
    family, prompt = tiny.demo().family, list(range(200, 240))
    num_rounds = 0

    def counted() -> int:
        nonlocal num_rounds
        num_rounds += 1
        return 3

    expected, state = plain(family, prompt, GREEDY, 30)
    tokens, cache = drafted(family, prompt, GREEDY, 30, counted)
    assert tokens == expected
    assert differing(cache, state) == []
    assert num_rounds < 25  # fewer than tokens


def test_depth_may_change_from_round_to_round() -> None:
    rng = random.Random(0)
    expected, state = plain(FAMILY, PROMPT[:30], SEEDED, 40)
    tokens, cache = drafted(FAMILY, PROMPT[:30], SEEDED, 40, lambda: rng.choice(DEPTHS))
    assert tokens == expected
    assert differing(cache, state) == []


def test_lagging_draft_rows_are_computed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_module, "PRIME_ROWS", 6)
    expected = plain(MIXED, PROMPT, GREEDY, 16)[0]
    for zeros in range(4, 9):
        for num in (zeros, zeros + 1, 16):
            turns = iter([0] * zeros + [3] * 16)
            tokens, cache = drafted(MIXED, PROMPT, GREEDY, num, partial(next, turns))
            assert tokens == expected[:num]
            assert differing(cache, read(MIXED, PROMPT + tokens[:-1])) == []


@pytest.mark.parametrize("kept", range(4))
def test_fewer_rows_than_tokens_may_be_kept(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop string that began in earlier tokens: tokens are emitted but do not become state."""
    monkeypatch.setattr(round_module, "PRIME_ROWS", 6)
    for before in (1, 4, 5, 6, 7):
        cache = read(MIXED, PROMPT)
        tokens: list[int] = []
        rounds = Rounds(StepTable(MIXED, eager_reason="test"), cache, PROMPT, GREEDY)

        def take(new: list[int], rows: int, rounds: Rounds = rounds, tokens: list[int] = tokens) -> int:
            tokens += new
            rounds.append(new)
            return min(rows, len(new))

        take([rounds.first()], 1)
        while len(tokens) < before:
            rounds.run(0, lambda new: take(new, len(new)))
        length = cache.length
        result = rounds.run(3, lambda new: take(new, kept))
        rounds.complete_draft_rows()
        assert cache.length == length + min(kept, len(result.tokens))
        assert differing(cache, read(MIXED, (PROMPT + tokens)[: cache.length])) == []


def test_a_fresh_seed_for_each_request_without_one() -> None:
    sampling = replace(SEEDED, seed=None)
    several = {tuple(drafted(FAMILY, PROMPT[:30], sampling, 12, lambda: 2)[0]) for _ in range(3)}
    assert len(several) == 3


class SpoiledFamily:
    """The tiny model, with a `head` that changes some rows."""

    def __init__(self, spoil: Callable[[mx.array, int], mx.array]) -> None:
        self._spoil, self._calls = spoil, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(FAMILY, name)

    def head(self, hidden: mx.array) -> mx.array:
        self._calls += 1
        return self._spoil(FAMILY.head(hidden), self._calls)


def nan_everywhere(found: mx.array) -> mx.array:
    return found * mx.nan


def one_infinite(found: mx.array) -> mx.array:
    return mx.where(mx.arange(found.shape[-1]) == 7, mx.inf, found)


def one_nan(found: mx.array) -> mx.array:
    return mx.where(mx.arange(found.shape[-1]) == 7, mx.nan, found)


def never(tokens: list[int]) -> int:
    raise AssertionError(f"{tokens} were made")


BAD = [nan_everywhere, one_infinite, one_nan]


@pytest.mark.parametrize("rule", ["greedy", "seeded", "fresh"])
@pytest.mark.parametrize("bad", BAD)
def test_the_first_token_is_never_drawn_from_bad_logits(rule: str, bad: Callable[[mx.array], mx.array]) -> None:
    sampling = {"greedy": GREEDY, "seeded": SEEDED, "fresh": replace(SEEDED, seed=None)}[rule]
    family: Any = SpoiledFamily(lambda found, call: bad(found))
    with pytest.raises(NumericsError):
        Rounds(StepTable(family, eager_reason="test"), read(FAMILY, PROMPT[:30]), PROMPT[:30], sampling).first()


@pytest.mark.parametrize("rule", ["greedy", "seeded", "fresh"])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("call", [2, 3, 4])
def test_no_token_is_drawn_from_bad_logits(rule: str, bad: Callable[[mx.array], mx.array], call: int) -> None:
    """call 2, 3: of the drafts; 4: of the verification. The cache is broken then and cannot be stored."""
    sampling = {"greedy": GREEDY, "seeded": SEEDED, "fresh": replace(SEEDED, seed=None)}[rule]
    family: Any = SpoiledFamily(lambda found, now: bad(found) if now == call else found)
    cache = read(FAMILY, PROMPT[:30])
    rounds = Rounds(StepTable(family, eager_reason="test"), cache, PROMPT[:30], sampling)
    rounds.append([rounds.first()])
    with pytest.raises(NumericsError):
        rounds.run(2, never)
    with pytest.raises(RuntimeError, match="broken"), lend([cache], FAMILY.numerics):
        pass


def test_a_single_bad_row_of_a_verification_is_enough() -> None:
    """Even a row whose token would not be needed."""
    family: Any = SpoiledFamily(lambda found, now: mx.concatenate([found[:-1], found[-1:] * mx.nan]) if now == 4 else found)
    cache = read(FAMILY, PROMPT[:30])
    rounds = Rounds(StepTable(family, eager_reason="test"), cache, PROMPT[:30], GREEDY)
    rounds.append([rounds.first()])
    with pytest.raises(NumericsError):
        rounds.run(2, never)
