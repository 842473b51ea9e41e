"""Answers under a grammar over a small model: the same at every depth, alone and together, with a matcher that never loses its place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import tiny
from tests.decode.drafting import SEEDED, eager, generation
from tests.fake_family import FakeFamily, scattered
from tests.running import read

from forerun.decode.depth import DepthPolicy, policy_for
from forerun.decode.draft_stats import Round
from forerun.decode.generate import Generation, decode
from forerun.values import GREEDY, Sampling

PROMPT = [1, 2, 3]
STOP = 7


@dataclass
class Rising:
    """A grammar: 20 tokens from those of the position's residue class, of which every fifth is one token alone; then a stop token."""

    accepted: list[int] = field(default_factory=list)

    def tokens(self, position: int) -> list[int]:
        if position >= 20:
            return [STOP]
        return (
            [30 + position] if position % 5 == 4 else [token for token in range(tiny.VOCAB) if token % 5 == position % 5 and token != STOP]
        )

    def allowed(self) -> NDArray[np.bool_] | None:
        return np.isin(np.arange(tiny.VOCAB), self.tokens(len(self.accepted)))

    def accept(self, token: int) -> None:
        if token not in self.tokens(len(self.accepted)):
            raise ValueError(token)
        self.accepted.append(token)

    def rollback(self, num: int) -> None:
        assert num <= len(self.accepted)
        del self.accepted[len(self.accepted) - num :]

    def forced(self) -> list[int]:
        position = len(self.accepted)
        return self.tokens(position) if position < 20 and len(self.tokens(position)) == 1 else []


def begun(sampling: Sampling, policy: DepthPolicy, matcher: Rising, max_tokens: int = 100) -> Generation:
    family = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
    ends = {"max_tokens": max_tokens, "stop_ids": frozenset([STOP]), "matcher": matcher}
    return generation(eager(family), read(family, PROMPT), PROMPT, sampling, policy, **ends)


def answered(sampling: Sampling, depth: int | str) -> Generation:
    answer = begun(sampling, policy_for(depth), Rising())  # type: ignore[arg-type]
    list(answer)
    return answer


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_an_answer_is_the_same_at_every_depth_and_follows_its_grammar(sampling: Sampling) -> None:
    plain = answered(sampling, 0)
    assert plain.finish == "stop"
    assert all(token in Rising().tokens(i) for i, token in enumerate(plain.sampled))
    assert plain.draft_stats.forced == 4
    for depth in (1, 2, 3, 5, "auto"):
        assert answered(sampling, depth).sampled == plain.sampled


@pytest.mark.parametrize("depth", [0, 2])
def test_it_is_the_same_with_others_in_its_rounds(depth: int) -> None:
    alone, family = answered(SEEDED, depth).sampled, FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
    steps, policy = eager(family), policy_for(depth)
    others = [generation(steps, read(family, PROMPT), PROMPT, GREEDY, policy, max_tokens=40) for _ in range(2)]
    ends = {"max_tokens": 100, "stop_ids": frozenset([STOP]), "matcher": Rising()}
    own = generation(steps, read(family, PROMPT), PROMPT, SEEDED, policy, **ends)
    together = [others[0], own, others[1]]
    for each in together:
        each.begin()
    while running := [each for each in together if each.finish is None]:
        decode(running)
    assert own.sampled == alone


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_matcher_is_that_of_the_emitted_tokens_however_the_answer_ends(depth: int) -> None:
    for max_tokens in range(1, 24):
        matcher = Rising()
        answer = begun(SEEDED, policy_for(depth), matcher, max_tokens)
        leave_at = random.Random(max_tokens).randrange(1, 30)
        for _ in answer:
            assert matcher.accepted == answer.sampled
            if answer.num_sampled >= leave_at:
                break
        assert matcher.accepted == answer.sampled


def test_forced_rounds_teach_the_policy_nothing() -> None:
    policy, observed, rounds = policy_for(1), list[int](), list[Round]()
    observe = policy.observe_all

    def noting(kinds: Sequence[str], contexts: Sequence[int], done: Sequence[Round]) -> None:
        observed.append(len(done))
        observe(kinds, contexts, done)

    policy.observe_all = noting  # type: ignore[method-assign]
    answer = begun(GREEDY, policy, Rising())
    answer.begin()
    while answer.finish is None:
        rounds += [each for each in decode([answer]) if isinstance(each, Round)]
    assert 0 < sum(each.is_forced for each in rounds) < len(rounds)
    assert len(observed) == sum(not each.is_forced for each in rounds)
