"""What families share, each part against another way of computing it."""

from __future__ import annotations

import mlx.core as mx

from forerun.models.layers import Rope


def test_rotary_positions_by_angles_are_those_of_the_fast_kernel() -> None:
    x, positions = mx.random.normal((9, 2, 24), key=mx.random.key(0)), mx.array([0, 1, 2, 7, 300, 5, 4, 3, 20_000], dtype=mx.int32)
    rope = Rope(16, 1e7)
    assert mx.allclose(rope(x, positions), rope.by_angles(x, positions), atol=2e-3)
    assert mx.allclose(rope(x[:-1], positions[:-1]), rope.by_angles(x[:-1], positions[:-1]), atol=1e-5)
    assert mx.array_equal(rope.by_angles(x, positions)[..., 16:], x[..., 16:])
