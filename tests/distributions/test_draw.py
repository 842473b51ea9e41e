"""The distributions of the two draws and of the noise."""

import mlx.core as mx
import numpy as np
import pytest
from tests.distributions import toy

from forerun.sampling.draw import draw_coupled
from forerun.sampling.noise import Purpose, gumbel, uniforms

LAW = np.array([[0.5, 0.0, 0.2, 0.3], [0.0, 0.0, 1.0, 0.0], [0.0, 1e-5, 0.4, 0.59999], [0.25, 0.25, 0.25, 0.25]])


def test_a_draw_has_the_given_distribution() -> None:
    np.testing.assert_allclose(toy.plain_draw_distribution(LAW), LAW, atol=2e-7, rtol=0)


def test_a_draw_needs_no_normalised_probabilities() -> None:
    np.testing.assert_allclose(toy.plain_draw_distribution(LAW * 1e-9), LAW, atol=2e-7, rtol=0)


@pytest.mark.parametrize(("one", "other"), [(0, 2), (2, 3), (3, 0)])
def test_of_two_tokens_a_coupled_draw_prefers_by_log_odds(one: int, other: int) -> None:
    """Gumbel-max theorem: an argmax that changes where g_one - g_other = log p_other - log p_one has the distribution p."""
    low, high = -20.0, 20.0
    for _ in range(40):
        g = np.full((1, 4), -100.0, dtype=np.float32)
        g[0, one], g[0, other] = (low + high) / 2, 0.0
        low, high = (low, g[0, one]) if int(draw_coupled(mx.array(LAW[:1]), mx.array(g))) == one else (g[0, one], high)
    assert low == pytest.approx(np.log(LAW[0, other] / LAW[0, one]), abs=1e-6)


def test_a_coupled_draw_is_the_best_of_all_pairs() -> None:
    g = gumbel([1], mx.arange(200)[None], 4)[0]
    probs = mx.broadcast_to(mx.array(LAW[:1].astype(np.float32)), (200, 4))
    with np.errstate(divide="ignore"):
        assert (np.array(draw_coupled(probs, g)) == (np.log(LAW[:1]) + np.array(g)).argmax(axis=1)).all()


@pytest.mark.parametrize("purpose", ["draft", "accept", "next"])
def test_uniforms_are_uniform_and_independent_of_their_neighbours(purpose: Purpose) -> None:
    u = np.array(uniforms([3], mx.arange(40_000)[None], purpose)[0])
    assert _ks(u) < 1.6
    cells = np.bincount((u[:-1] * 8).astype(int) * 8 + (u[1:] * 8).astype(int), minlength=64)
    assert abs(((cells - 39_999 / 64) ** 2 / (39_999 / 64)).sum() - 63) < 4 * np.sqrt(126)


def test_gumbel_noise_has_the_gumbel_distribution() -> None:
    g = np.array(gumbel([3], mx.arange(8)[None], 5_000)[0], dtype=np.float64)
    assert _ks(np.exp(-np.exp(-g)).ravel()) < 1.6
    assert abs(np.corrcoef(g)[np.triu_indices(8, 1)]).max() < 0.06


def _ks(u: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance from the uniform distribution, times sqrt(n): above 1.6 once in a hundred samples."""
    return float(np.abs(np.sort(u) - (np.arange(u.size) + 0.5) / u.size).max() * np.sqrt(u.size))
