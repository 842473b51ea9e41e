"""Answers under a grammar have exactly the distribution of the target alone with impossible tokens masked, whatever is drafted, at every
depth; and a round leaves the matchers where it found them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.distributions import toy
from tests.distributions.test_round import surprise
from tests.distributions.test_shared_round import DEPTHS, NUM, RULES, TABLES, VOCAB, tokens_of

from forerun.decode.verification import Draw, DrawGroup, Outcome, grouped
from forerun.values import Sampling

# Which tokens may follow each prefix: the likeliest is forbidden at once, later rows depend on the drafts before them.
GRAMMARS = ("no repeats", "free, then one", "falls silent")


def allowed_after(grammar: str, prefix: toy.Prefix) -> list[int]:
    if grammar == "no repeats":
        return [token for token in range(VOCAB) if token != (prefix[-1] if prefix else 3)]
    if grammar == "free, then one":  # a trigger: all tokens until the first 2, then only 0
        return [0] if 2 in prefix else list(range(VOCAB))
    return [1, 3] if sum(prefix) < 4 else [3]


@dataclass
class ToyMatcher:
    """The grammar of that name. is_broken: it raises, as a matcher in an error state does."""

    grammar: str
    is_broken: bool = False
    accepted: list[int] = field(default_factory=list)
    num_masks: int = 0

    def allowed(self) -> NDArray[np.bool_] | None:
        if self.is_broken:
            raise RuntimeError("broken")
        self.num_masks += 1
        tokens = allowed_after(self.grammar, tuple(self.accepted))
        return None if len(tokens) == VOCAB else np.isin(np.arange(VOCAB), tokens)

    def accept(self, token: int) -> None:
        if token not in allowed_after(self.grammar, tuple(self.accepted)):
            raise ValueError(token)
        self.accepted.append(token)

    def rollback(self, num: int) -> None:
        del self.accepted[len(self.accepted) - num :]

    def forced(self) -> list[int]:
        return []


def constrained(grammar: str, sampling: Sampling, length: int) -> np.ndarray:
    """The joint distribution of the next tokens of the target alone, masked before everything else."""
    joint = np.zeros((VOCAB,) * length)
    for tokens in product(range(VOCAB), repeat=length):
        rows = [masked(grammar, toy.logits("target", tokens[:i], VOCAB), tokens[:i]) for i in range(length)]
        joint[tokens] = np.prod([toy.rule(row, sampling, (), ())[token] for row, token in zip(rows, tokens, strict=True)])
    return joint


def masked(grammar: str, row: np.ndarray, prefix: toy.Prefix) -> np.ndarray:
    return np.where(np.isin(np.arange(VOCAB), allowed_after(grammar, prefix)), row, -np.inf)


def run(group: DrawGroup) -> Outcome:
    """A round of the toy model after the same text for all; forced drafts are there from the start."""
    prefix = mx.zeros(len(group.draws), dtype=mx.int32)
    prefixes = [prefix]
    for length in range(group.depth):
        token = group.drafts[:, length] if group.forced else group.draft(TABLES["draft", length][prefix])
        prefix = prefix * VOCAB + token
        prefixes.append(prefix)
    rows = mx.stack([TABLES["target", length][each] for length, each in enumerate(prefixes)], axis=1)
    return group.verify(rows.reshape(-1, VOCAB))


def draws_of(rule: tuple[str, bool], num: int, grammar: str) -> list[Draw]:
    name, is_coupled = rule
    return [Draw(toy.FILTERS[name], is_coupled, seed, None, None, ToyMatcher(grammar)) for seed in range(num)]


def check(grammar: str, sampling: Sampling, outcome: Outcome) -> None:
    first, second, accepted = tokens_of(outcome)
    joint = constrained(grammar, sampling, 2)
    assert surprise(np.bincount(first, minlength=VOCAB), joint.sum(axis=1)) < 5
    for token in range(VOCAB):
        among = (first == token) & (accepted > 0)
        if among.sum() > 100:
            assert surprise(np.bincount(second[among], minlength=VOCAB), joint[token] / joint[token].sum()) < 5


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("depth", DEPTHS)
def test_tokens_have_the_constrained_targets_distribution(rule: tuple[str, bool], depth: int, grammar: str) -> None:
    draws = draws_of(rule, NUM // 2, grammar)
    check(grammar, toy.FILTERS[rule[0]], run(DrawGroup(depth, draws, [0] * len(draws), [9] * len(draws))))
    assert all(draw.matcher is not None and draw.matcher.accepted == [] for draw in draws)  # type: ignore[attr-defined]


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("forced", [[1], [1, 0], [3, 3, 3], [0, 2, 0]], ids=str)
def test_forced_drafts_change_no_distribution(rule: tuple[str, bool], forced: list[int], grammar: str) -> None:
    """Also those that the grammar does not allow: they are drafts like others."""
    draws = draws_of(rule, NUM // 2, grammar)
    check(grammar, toy.FILTERS[rule[0]], run(DrawGroup(len(forced), draws, [0] * len(draws), [9] * len(draws), [forced] * len(draws))))


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("rule", [("usual", True), ("greedy", False)], ids=str)
def test_a_seeded_or_greedy_answer_is_the_same_at_every_depth(rule: tuple[str, bool], grammar: str) -> None:
    draws = draws_of(rule, 200, grammar)
    plain = run(DrawGroup(0, draws, [0] * len(draws), [9] * len(draws)))
    for depth in DEPTHS[1:]:
        outcome = run(DrawGroup(depth, draws, [0] * len(draws), [9] * len(draws)))
        assert tokens_of(outcome)[0].tolist() == np.array(plain.verdict.token).tolist()


def test_alone_in_its_group_it_draws_what_it_draws_in_a_larger_one_with_other_grammars() -> None:
    draws = [draw for grammar in GRAMMARS for draw in draws_of(("usual", False), 20, grammar)]
    together = run(DrawGroup(2, draws, [0] * len(draws), [9] * len(draws)))
    for i, draw in enumerate(draws):
        alone = run(DrawGroup(2, [draw], [0], [9]))
        assert int(alone.verdict.token[0]) == int(together.verdict.token[i])
        assert alone.drafts[0].tolist() == together.drafts[i].tolist()


def test_a_grammar_that_fails_ends_its_sequence_alone() -> None:
    draws = draws_of(("neutral", False), 3, "no repeats")
    broken = draws[1]._replace(matcher=ToyMatcher("no repeats", is_broken=True))
    together = run(DrawGroup(2, [draws[0], broken, draws[2]], [0] * 3, [9] * 3))
    assert list(together.errors) == [1]
    for i in (0, 2):
        assert int(run(DrawGroup(2, [draws[i]], [0], [9])).verdict.token[0]) == int(together.verdict.token[i])


def test_no_mask_is_made_while_all_tokens_are_allowed_and_drafts_are_not_waited_for() -> None:
    """In "free, then one" the drafts are drawn without masks; the rows after a 2 are masked all the same."""
    draws = draws_of(("neutral", False), 300, "free, then one")
    outcome = run(DrawGroup(3, draws, [0] * len(draws), [9] * len(draws)))
    drafts, accepted, token = np.array(outcome.drafts), np.array(outcome.verdict.accepted), np.array(outcome.verdict.token)
    for own, num, last in zip(drafts.tolist(), accepted.tolist(), token.tolist(), strict=True):
        emitted = [*own[:num], last]
        assert all(emitted[i + 1] == 0 for i in range(num) if 2 in emitted[: i + 1])
    assert any(2 in own and own[own.index(2) + 1 :] not in ([], [0], [0, 0]) for own in drafts.tolist())


def test_sequences_with_grammars_share_a_group_and_others_have_theirs() -> None:
    free = Draw(toy.FILTERS["neutral"], False, 0, None, None)
    assert grouped([free, *draws_of(("neutral", False), 2, "no repeats"), free], [1] * 4) == [[0, 3], [1, 2]]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_drafts_follow_the_grammar_once_its_first_row_has_a_mask(rule: tuple[str, bool]) -> None:
    outcome = run(DrawGroup(3, draws_of(rule, 200, "no repeats"), [0] * 200, [9] * 200))
    for own in np.array(outcome.drafts).tolist():
        assert all(token in allowed_after("no repeats", tuple(own[:i])) for i, token in enumerate(own))
