"""The tokens that a round emits have exactly the target's distribution, at every depth and with every sampling rule."""

from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from tests.distributions import toy

from forerun.sampling.draw import draw, draw_coupled
from forerun.sampling.noise import gumbel, uniforms
from forerun.sampling.verify import verify, verify_coupled


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("name", toy.FILTERS)
def test_emitted_tokens_have_the_targets_distribution(name: str, depth: int) -> None:
    vocab = 4 if depth < 4 else 3
    emitted = toy.round_distribution(toy.FILTERS[name], depth, vocab)
    np.testing.assert_allclose(emitted, toy.target_distribution(toy.FILTERS[name], depth + 1, vocab), atol=1e-6, rtol=0)


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("name", ["usual", "all", "greedy, penalised"])
def test_a_coupled_round_emits_the_tokens_of_plain_decoding(name: str, depth: int) -> None:
    vocab, sampling = 3, toy.FILTERS[name]
    noise = gumbel([5], (mx.arange(depth + 1))[None], vocab)[0]
    plain: toy.Prefix = ()
    for position in range(depth + 1):
        plain += (int(draw_coupled(toy.distributions("target", plain, 1, sampling, vocab), noise[position : position + 1])),)
    for drafts in product(range(vocab), repeat=depth):
        target = toy.distributions("target", drafts, depth + 1, sampling, vocab)
        accepted, token = verify_coupled(target[None], mx.array(drafts, dtype=mx.int32).reshape(1, depth), noise[None])
        agreeing = next((i for i in range(depth) if drafts[i] != plain[i]), depth)
        assert int(accepted) == agreeing
        assert (*drafts[:agreeing], int(token)) == plain[: agreeing + 1]


@pytest.mark.long
@pytest.mark.parametrize("name", ["neutral", "usual", "all"])
def test_many_rounds_with_real_noise(name: str) -> None:
    depth, vocab, num, sampling = 3, 4, 2_000_000, toy.FILTERS[name]
    rounds = mx.arange(num) * 8
    every = list(product(range(vocab), repeat=depth))
    targets = mx.stack([toy.distributions("target", prefix, depth + 1, sampling, vocab) for prefix in every])
    draft_table = mx.stack([toy.draft_distributions(prefix, sampling, vocab) for prefix in every])
    row = np.zeros(num, dtype=np.int64)
    for i in range(depth):
        probs = draft_table[mx.array(row), i]
        tokens = np.array(draw(probs, uniforms([11], (rounds + i)[None], "draft")[0]))
        row += tokens.astype(np.int64) * vocab ** (depth - 1 - i)
    drafts = np.array(every)[row]
    u_accept = mx.stack([uniforms([11], (rounds + i)[None], "accept")[0] for i in range(depth)], axis=1)
    index = mx.array(row)
    verdict = verify(targets[index], draft_table[index], mx.array(drafts), u_accept, uniforms([11], rounds[None], "next")[0])
    first = np.where(np.array(verdict.accepted) > 0, drafts[:, 0], np.array(verdict.token))
    second = np.where(np.array(verdict.accepted) > 1, drafts[:, 1], np.array(verdict.token))
    joint = toy.target_distribution(sampling, 2, vocab)
    assert surprise(np.bincount(first, minlength=vocab), joint.sum(axis=1)) < 5
    for token in range(vocab):
        among = (first == token) & (np.array(verdict.accepted) > 0)
        assert surprise(np.bincount(second[among], minlength=vocab), joint[token] / max(joint[token].sum(), 1e-300)) < 5


def surprise(seen: np.ndarray, probs: np.ndarray) -> float:
    """Pearson's chi-square of the counts `seen` under `probs`, as normal standard deviations (Wilson and Hilferty 1931)."""
    possible = probs > 0
    assert seen[~possible].sum() == 0
    expected = probs[possible] * seen.sum()
    freedom = max(int(possible.sum()) - 1, 1)
    statistic = ((seen[possible] - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    return float((np.cbrt(statistic / freedom) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom)))
