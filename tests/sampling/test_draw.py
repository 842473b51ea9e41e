from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from tests.distributions.toy import LARGEST, SMALLEST

from forerun.sampling.draw import draw, draw_coupled


@pytest.mark.parametrize("u", [SMALLEST, 0.25, 0.5, LARGEST])
@pytest.mark.parametrize("scale", [1.0, 0.3, 1e-30])
def test_a_possible_token_is_drawn_at_either_end(u: float, scale: float) -> None:
    probs = np.random.default_rng(0).random((40, 999)).astype(np.float32)
    probs[:, :50] = probs[:, -50:] = probs[:, 300:700] = 0
    probs = probs / probs.sum(axis=1, keepdims=True) * np.float32(scale)
    tokens = np.array(draw(mx.array(probs), mx.full((40,), u)))
    assert (probs[np.arange(40), tokens] > 0).all()


def test_tokens_are_drawn_in_order() -> None:
    probs = mx.array([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]] * 5)
    assert draw(probs, mx.array([0.1, 0.24, 0.26, 0.74, 0.76])).tolist() == [1, 1, 3, 3, 4]


def test_a_coupled_draw_never_takes_an_impossible_token() -> None:
    assert draw_coupled(mx.array([[0.0, 1e-38, 0.0]]), mx.array([[22.0, -2.0, 22.0]])).tolist() == [1]


def test_a_coupled_draw_takes_the_lowest_of_equals() -> None:
    assert draw_coupled(mx.array([[0.2, 0.4, 0.4]]), mx.zeros((1, 3))).tolist() == [1]


def test_a_coupled_draw_keeps_leading_shapes() -> None:
    assert draw_coupled(mx.full((2, 3, 4), 0.25), mx.zeros((2, 3, 4))).shape == (2, 3)
