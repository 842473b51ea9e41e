"""Tokens that many sequences draw in one round, with different depths and rules, have exactly the target's distribution each: those that
share a group, and those that are alone in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from tests.distributions import toy
from tests.distributions.test_round import surprise

from forerun.decode.verification import Draw, DrawGroup, Outcome, grouped
from forerun.sampling.distribution import count_prompt
from forerun.values import Sampling

VOCAB, DEPTHS = 4, (0, 1, 2, 3)
NUM = 12_000  # of each rule and depth
RULES = [("neutral", False), ("usual", False), ("hot", False), ("usual", True)]


def table(which: str, length: int) -> mx.array:
    """Logits [VOCAB ** length, VOCAB] after every prefix of this length, in order."""
    return mx.array(np.stack([toy.logits(which, prefix, VOCAB) for prefix in product(range(VOCAB), repeat=length)]))


TABLES = {(which, length): table(which, length) for which in ("target", "draft") for length in range(max(DEPTHS) + 1)}


def run(group: DrawGroup) -> Outcome:
    """A round of the toy model after the same text for all."""
    prefix = mx.zeros(len(group.draws), dtype=mx.int32)
    prefixes = [prefix]
    for length in range(group.depth):
        prefix = prefix * VOCAB + group.draft(TABLES["draft", length][prefix])
        prefixes.append(prefix)
    rows = mx.stack([TABLES["target", length][each] for length, each in enumerate(prefixes)], axis=1)
    return group.verify(rows.reshape(-1, VOCAB))


def group_of(draws: Sequence[Draw], depth: int) -> DrawGroup:
    return DrawGroup(depth, list(draws), [0] * len(draws), [9] * len(draws))


def draws_of(rule: tuple[str, bool], num: int) -> list[Draw]:
    name, is_coupled = rule
    return [Draw(toy.FILTERS[name], is_coupled, seed, None, None) for seed in range(num)]


def tokens_of(outcome: Outcome) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first and second token [b] that each emits, and how many drafts it accepted."""
    accepted, token, depth = np.array(outcome.verdict.accepted), np.array(outcome.verdict.token), outcome.drafts.shape[1]
    drafts = np.pad(np.array(outcome.drafts), [(0, 0), (0, 2)])[:, : max(depth, 2)]
    return np.where(accepted > 0, drafts[:, 0], token), np.where(accepted > 1, drafts[:, 1], token), accepted


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_sequences_of_different_depths_draw_from_the_targets_distribution(rule: tuple[str, bool]) -> None:
    draws = [draw for draw in draws_of(rule, NUM) for _ in DEPTHS]
    depths = [depth for _ in range(NUM) for depth in DEPTHS]
    other = draws_of(("neutral", rule[0] == "neutral"), 5)
    groups = grouped([*draws, *other], [*depths, *([2] * len(other))])
    assert sorted(map(len, groups)) == [len(other), *[NUM] * len(DEPTHS)]
    for group in groups[: len(DEPTHS)]:
        check(toy.FILTERS[rule[0]], run(group_of([draws[i] for i in group], depths[group[0]])))


def check(sampling: Sampling, outcome: Outcome) -> None:
    first, second, accepted = tokens_of(outcome)
    joint = toy.target_distribution(sampling, 2, VOCAB)
    assert surprise(np.bincount(first, minlength=VOCAB), joint.sum(axis=1)) < 5
    for token in range(VOCAB):
        among = (first == token) & (accepted > 0)
        if among.sum() > 100:
            assert surprise(np.bincount(second[among], minlength=VOCAB), joint[token] / joint[token].sum()) < 5


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_sequence_alone_in_its_group_draws_what_it_draws_in_a_larger_one(rule: tuple[str, bool], depth: int) -> None:
    draws = draws_of(rule, 60)
    together = run(group_of(draws, depth))
    for i in range(0, len(draws), 7):
        alone = run(group_of(draws[i : i + 1], depth))
        assert int(alone.verdict.accepted[0]) == int(together.verdict.accepted[i])
        assert int(alone.verdict.token[0]) == int(together.verdict.token[i])
        assert alone.drafts[0].tolist() == together.drafts[i].tolist()


def test_sequences_draw_independently() -> None:
    """Two that differ in their seeds alone: pairs of their first tokens have the product of the distribution with itself."""
    first, _, _ = tokens_of(run(group_of(draws_of(("neutral", False), NUM), 2)))
    one = toy.target_distribution(toy.FILTERS["neutral"], 1, VOCAB)
    pairs = np.bincount(first[0::2] * VOCAB + first[1::2], minlength=VOCAB * VOCAB)
    assert surprise(pairs, np.outer(one, one).reshape(-1)) < 5


def test_sequences_with_penalties_have_groups_of_their_own() -> None:
    draws = draws_of(("neutral", False), 4)
    counts = count_prompt(mx.array(toy.PROMPT), VOCAB)
    draws[1], draws[2] = (draw._replace(counts=counts) for draw in draws[1:3])
    assert grouped(draws, [2, 2, 2, 2]) == [[0, 3], [1], [2]]
    assert grouped(draws[:1] + draws[3:], [2, 1]) == [[0], [1]]
