"""Rotary positions: rows rotated in parts, as CUDA needs it, have the bits of all at once."""

from __future__ import annotations

import mlx.core as mx
import pytest

from forerun.kernels import rope
from forerun.kernels.rope import Rope


@pytest.mark.parametrize(("rows", "heads", "num_parts"), [(127, 4, 1), (128, 2, 2), (300, 8, 5)])
def test_parts_have_the_same_bits(monkeypatch: pytest.MonkeyPatch, rows: int, heads: int, num_parts: int) -> None:
    x, positions = mx.random.normal((rows, heads, 64), key=mx.random.key(0)), 7 + mx.arange(rows, dtype=mx.int32)
    whole = Rope(16, 1e7)(x, positions)
    monkeypatch.setattr(rope, "is_cuda", lambda: True)
    parts, turn = [], mx.fast.rope
    monkeypatch.setattr(mx.fast, "rope", lambda x, *args, **named: parts.append(x.shape[0]) or turn(x, *args, **named))
    assert mx.array_equal(Rope(16, 1e7)(x, positions), whole)
    assert len(parts) == num_parts
    assert all(n * -(-heads // 4) < 128 for n in parts)


def test_many_dims_need_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope, "is_cuda", lambda: True)
    monkeypatch.setattr(mx, "concatenate", None)
    assert Rope(64, 1e7)(mx.zeros((512, 8, 256)), mx.arange(512, dtype=mx.int32)).shape == (512, 8, 256)
