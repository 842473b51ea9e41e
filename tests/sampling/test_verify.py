from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from tests.distributions.toy import LARGEST, SMALLEST

from forerun.sampling.verify import Verdict, verify, verify_coupled


def one_hot(tokens: list[list[int]], vocab: int = 4) -> mx.array:
    return (mx.array(tokens)[..., None] == mx.arange(vocab)).astype(mx.float32)


def plain(verdict: Verdict) -> list[tuple[int, int]]:
    return list(zip(verdict.accepted.tolist(), verdict.token.tolist(), strict=True))


@pytest.mark.parametrize("u", [SMALLEST, LARGEST])
def test_one_hot_distributions_accept_equal_drafts_and_replace_others(u: float) -> None:
    target = one_hot([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    drafts = mx.array([[1, 2], [1, 0], [0, 2]])
    verdict = verify(target, one_hot(drafts.tolist()), drafts, mx.full((3, 2), u), mx.full((3,), u))
    assert plain(verdict) == [(2, 3), (1, 2), (0, 1)]


def test_without_drafts_it_draws() -> None:
    target = mx.array([[[0.5, 0.5]], [[0.0, 1.0]]])
    verdict = verify(target, mx.zeros((2, 0, 2)), mx.zeros((2, 0), dtype=mx.int32), mx.zeros((2, 0)), mx.array([0.4, 0.4]))
    assert plain(verdict) == [(0, 0), (0, 1)]
    coupled = verify_coupled(target, mx.zeros((2, 0), dtype=mx.int32), mx.zeros((2, 1, 2)))
    assert plain(coupled) == [(0, 0), (0, 1)]


def test_verdicts_are_int32() -> None:
    drafts = mx.array([[1]])
    for verdict in (
        verify(one_hot([[1, 2]]), one_hot([[1]]), drafts, mx.full((1, 1), 0.5), mx.full((1,), 0.5)),
        verify_coupled(one_hot([[1, 2]]), drafts, mx.zeros((1, 2, 4))),
    ):
        assert [array.dtype for array in verdict] == [mx.int32, mx.int32]
        assert [array.shape for array in verdict] == [(1,), (1,)]


def test_a_rejection_that_only_rounding_explains_draws_from_the_target() -> None:
    probs = one_hot([[1, 0]]) * (1 - 2.0**-20)
    verdict = verify(probs, one_hot([[1]]), mx.array([[1]]), mx.full((1, 1), LARGEST), mx.full((1,), 0.5))
    assert plain(verdict) == [(0, 1)]


def test_a_sequence_has_the_same_verdict_alone_and_among_others() -> None:
    random = np.random.default_rng(0)
    target, draft = (mx.softmax(mx.array(random.normal(size=(6, rows, 50)).astype(np.float32)), axis=-1) for rows in (4, 3))
    drafts = mx.array(random.integers(0, 50, (6, 3)))
    u_accept, u_next = mx.array(random.random((6, 3), dtype=np.float32)), mx.array(random.random(6, dtype=np.float32))
    together = plain(verify(target, draft, drafts, u_accept, u_next))
    for row in range(6):
        at = slice(row, row + 1)
        assert plain(verify(target[at], draft[at], drafts[at], u_accept[at], u_next[at])) == together[at]


def test_is_lazy() -> None:
    def step(target: mx.array, draft: mx.array, drafts: mx.array, u: mx.array) -> tuple[Verdict, Verdict]:
        return verify(target, draft, drafts, u[:, 1:], u[:, 0]), verify_coupled(target, drafts, target)

    verdicts = mx.compile(step)(mx.zeros((2, 3, 5)), mx.zeros((2, 2, 5)), mx.zeros((2, 2), dtype=mx.int32), mx.zeros((2, 3)))
    assert [array.shape for verdict in verdicts for array in verdict] == [(2,)] * 4
