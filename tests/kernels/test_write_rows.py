"""Rows written into a long buffer: at their position and nowhere else."""

from __future__ import annotations

import mlx.core as mx
import pytest

from forerun.kernels.write_rows import write_rows


@pytest.mark.parametrize(("start", "rows"), [(0, 1), (3, 4), (9, 1), (0, 10)])
def test_rows_are_written_at_their_position_and_nowhere_else(start: int, rows: int) -> None:
    given = mx.arange(2 * rows * 3, dtype=mx.float32).reshape(2, rows, 3) + 1
    found = write_rows(mx.zeros((2, 10, 3)), given, start)
    assert mx.array_equal(found[:, start : start + rows], given)
    assert float(found.sum()) == float(given.sum())
