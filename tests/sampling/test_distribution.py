from __future__ import annotations

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.distributions.toy import FILTERS, rule

from forerun.errors import BadRequestError
from forerun.sampling.distribution import Counts, count_prompt, distribution, has_penalty, is_finite
from forerun.values import NEUTRAL, Sampling

NAN, INF = float("nan"), float("inf")
WIDE = {
    **FILTERS,
    "k 40": replace(NEUTRAL, top_k=40, top_p=0.9),
    "k 1": replace(NEUTRAL, top_k=1),
    "k vocab": replace(NEUTRAL, top_k=10**6),
}


def probs(row: list[float], sampling: Sampling) -> list[float]:
    return list(np.array(distribution(mx.array([row]), sampling, None))[0])


def random_logits(rows: int, vocab: int, steps: int) -> np.ndarray:
    """Logits with many ties: multiples of 1 / steps."""
    return (np.round(np.random.default_rng(vocab).normal(0, 2, (rows, vocab)) * steps) / steps).astype(np.float32)


@pytest.mark.parametrize("vocab", [5, 64, 1000, 4099])
@pytest.mark.parametrize("name", WIDE)
def test_agrees_with_a_direct_implementation(name: str, vocab: int) -> None:
    values = random_logits(3, vocab, 8)
    prompt, answer, drafts = (0, 3, vocab - 1), (1, 3, 3), (2, 1)
    counts = count_prompt(mx.array(prompt), vocab).extended(mx.array(answer))._replace(drafts=mx.array(drafts))
    got = np.array(distribution(mx.array(values), WIDE[name], counts))
    for row in range(3):
        np.testing.assert_allclose(got[row], rule(values[row], WIDE[name], prompt, answer + drafts[:row]), atol=2e-6, rtol=0)


def test_exactly_top_k_tokens_survive_a_tie_the_lower_ids_first() -> None:
    values = mx.array(np.tile([0.0, 1.0], (2, 1000)).astype(np.float32))
    kept = np.array(distribution(values, replace(NEUTRAL, top_k=5), None))
    assert [np.flatnonzero(row).tolist() for row in kept] == [[1, 3, 5, 7, 9]] * 2
    np.testing.assert_array_equal(kept[kept > 0], np.float32(0.2))


def test_minus_zero_ties_with_zero() -> None:
    assert probs([-0.0, -1.0, 0.0], replace(NEUTRAL, top_k=1)) == [1, 0, 0]
    assert probs([-0.0, 0.0, 0.0], replace(NEUTRAL, top_k=2)) == [0.5, 0.5, 0]


@pytest.mark.parametrize("sampling", [replace(NEUTRAL, temperature=0.0), replace(NEUTRAL, temperature=0.0, top_k=9, top_p=0.5, min_p=0.2)])
def test_temperature_zero_is_one_hot_at_the_lowest_id_of_a_tie(sampling: Sampling) -> None:
    assert probs([1.0, 7.0, 7.0, -INF], sampling) == [0, 1, 0, 0]


@pytest.mark.parametrize("sampling", [NEUTRAL, replace(NEUTRAL, top_k=2), replace(NEUTRAL, top_p=0.99), replace(NEUTRAL, min_p=0.01)])
def test_a_tiny_temperature_does_not_overflow(sampling: Sampling) -> None:
    assert probs([1e4, 2e4, -INF], replace(sampling, temperature=1e-38)) == [0, 1, 0]


@pytest.mark.parametrize("sampling", [NEUTRAL, replace(NEUTRAL, top_k=2), replace(NEUTRAL, top_p=0.99), replace(NEUTRAL, min_p=0.01)])
def test_a_low_temperature_loses_no_digits_of_large_logits(sampling: Sampling) -> None:
    """1000 / 1e-4 is 1e7, where float32 counts in ones: the difference of two logits would be rounded to one of these."""
    lower, higher = probs([1000.0, 1000.0 + 2**-13, -INF], replace(sampling, temperature=1e-4))[:2]
    assert higher / lower == pytest.approx(math.exp(2**-13 / 1e-4), rel=1e-4)


@pytest.mark.parametrize("sampling", [replace(NEUTRAL, top_p=0.0), replace(NEUTRAL, top_p=1e-9), replace(NEUTRAL, min_p=1.0)])
def test_the_largest_always_survives(sampling: Sampling) -> None:
    assert probs([0.0, 0.5, 0.25], sampling) == [0, 1, 0]


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_top_p_zero_is_one_hot_at_the_lowest_id_of_a_tie(temperature: float) -> None:
    assert probs([0.0, 3.0, 3.0, -1.0], replace(NEUTRAL, temperature=temperature, top_p=0.0)) == [0.0, 1.0, 0.0, 0.0]


def test_top_k_beyond_the_possible_tokens_keeps_those() -> None:
    assert probs([-INF, 1.0, -INF, 1.0], replace(NEUTRAL, top_k=3)) == [0, 0.5, 0, 0.5]


def test_top_p_counts_the_mass_after_top_k() -> None:
    row = np.log([0.3, 0.3, 0.2, 0.2]).tolist()
    assert probs(row, replace(NEUTRAL, top_k=2, top_p=0.4)) == pytest.approx([1, 0, 0, 0])
    assert probs(row, replace(NEUTRAL, top_k=2, top_p=0.6)) == pytest.approx([0.5, 0.5, 0, 0])


@pytest.mark.parametrize("name", WIDE)
def test_a_row_has_the_same_bits_alone_and_among_others(name: str) -> None:
    values = mx.array(random_logits(8, 8192, 1000))
    sampling = replace(WIDE[name], repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    together = distribution(values, sampling, None)
    for row in range(8):
        assert mx.array_equal(together[row : row + 1], distribution(values[row : row + 1], sampling, None))


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("row", [[0.0, NAN, 1.0, 2.0, 3.0], [0.0, INF, 1.0, -INF, INF], [-INF] * 5], ids=["nan", "inf", "nothing"])
def test_a_row_without_a_distribution_is_detected(name: str, row: list[float]) -> None:
    values = mx.array([row, [0.0, -INF, 1.0, 2.0, 3.0]])
    assert is_finite(values).tolist() == [False, True]
    got = np.array(distribution(values, FILTERS[name], count_prompt(mx.array([0]), 5)))
    assert np.isnan(got[0]).any()
    assert got[1].sum() == pytest.approx(1)


def test_a_single_row_follows_all_the_drafts() -> None:
    counts = count_prompt(mx.array([0]), 4)._replace(drafts=mx.array([1, 1, 3]))
    got = np.array(distribution(mx.zeros((1, 4)), replace(NEUTRAL, frequency_penalty=1.0), counts))[0]
    np.testing.assert_allclose(got, rule(np.zeros(4), replace(NEUTRAL, frequency_penalty=1.0), (0,), (1, 1, 3)), atol=1e-7)


def test_extended_counts_have_no_drafts() -> None:
    counts = count_prompt(mx.array([2, 2]), 4)._replace(drafts=mx.array([1])).extended(mx.array([3, 0, 3]))
    assert counts.prompt.tolist() == [False, False, True, False]
    assert counts.answer.tolist() == [1, 0, 0, 2]
    assert counts.drafts.tolist() == []


def test_penalties_without_counts_are_a_mistake() -> None:
    assert not has_penalty(NEUTRAL)
    for name in ("repetition", "presence", "frequency"):
        sampling = FILTERS[name]
        assert has_penalty(sampling)
        with pytest.raises(ValueError, match="counts"):
            distribution(mx.zeros((1, 4)), sampling, None)


@pytest.mark.parametrize("token", [-1, 4])
def test_a_bias_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(BadRequestError, match=f"token {token}") as caught:
        distribution(mx.zeros((1, 4)), replace(NEUTRAL, logit_bias={token: 1.0}), None)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("name", FILTERS)
def test_is_lazy(name: str) -> None:
    """Tracing for compilation refuses to evaluate anything, so a host synchronisation would raise."""

    def step(logits: mx.array, prompt: mx.array, answer: mx.array, drafts: mx.array) -> tuple[mx.array, mx.array]:
        return distribution(logits, FILTERS[name], Counts(prompt, answer, drafts)), is_finite(logits)

    probs, finite = mx.compile(step)(mx.zeros((2, 300)), mx.zeros(300) > 0, mx.zeros(300, dtype=mx.int32), mx.array([1]))
    assert (probs.shape, finite.shape) == ((2, 300), (2,))
