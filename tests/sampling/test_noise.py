from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from tests.distributions.toy import LARGEST, SMALLEST

from forerun.sampling.noise import fresh_seed, gumbel, uniforms


def test_is_pinned() -> None:
    """The same numbers on every machine and in every version: a change here changes what every seed means."""
    assert uniforms([0], mx.array([0, 1])[None], "draft")[0].tolist() == pytest.approx(PINNED[:2], abs=1e-7)
    assert uniforms([-(2**80)], mx.array([5])[None], "accept")[0].tolist() == pytest.approx(PINNED[2:3], abs=1e-7)
    assert gumbel([7], mx.array([100_000])[None], 3)[0][0].tolist() == pytest.approx(PINNED[3:], abs=1e-6)


PINNED = [0.947152853, 0.574029326, 0.049584527, -0.057965610, 1.070029855, -0.811011791]


def test_a_position_has_the_same_noise_alone_and_among_others() -> None:
    positions = mx.array([3, 90_000, 0, 4])
    together, coupled = uniforms([1], positions[None], "next")[0], gumbel([1], positions[None], 500)[0]
    for row in range(4):
        assert mx.array_equal(uniforms([1], (positions[row : row + 1])[None], "next")[0], together[row : row + 1])
        assert mx.array_equal(gumbel([1], (positions[row : row + 1])[None], 500)[0], coupled[row : row + 1])


def test_seed_position_and_purpose_each_matter() -> None:
    positions = mx.arange(2)
    seen = [
        uniforms([seed], positions[None], purpose)[0].tolist() for seed in (1, -1, 2, 2**64 + 1) for purpose in ("draft", "accept", "next")
    ]
    assert len({u for row in seen for u in row}) == 24


def test_the_global_random_state_is_left_alone() -> None:
    mx.random.seed(3)
    before = [state.tolist() for state in mx.random.state]
    mx.eval(uniforms([1], mx.arange(3)[None], "draft")[0], gumbel([1], mx.arange(3)[None], 10)[0])
    assert [state.tolist() for state in mx.random.state] == before


@pytest.mark.parametrize("end", [0.0, LARGEST])
def test_the_interval_is_open_and_gumbel_noise_finite(end: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.random, "uniform", lambda shape, key: mx.full(shape, end) + 0.0 * key[0])
    assert uniforms([1], mx.arange(1)[None], "draft")[0].item() == max(end, SMALLEST)
    assert np.isfinite(np.array(gumbel([1], mx.arange(1)[None], 2)[0])).all()


def test_fresh_seeds_differ() -> None:
    assert len({fresh_seed() for _ in range(100)}) == 100


def test_is_lazy() -> None:
    traced = mx.compile(lambda positions: (uniforms([1], positions[None], "draft")[0], gumbel([1], positions[None], 5)[0]))(mx.arange(2))
    assert [array.shape for array in traced] == [(2,), (2, 5)]
