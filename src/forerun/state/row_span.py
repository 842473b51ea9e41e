"""The new rows of one sequence in a pass."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx


class RowSpan(NamedTuple):
    """start: the first row's position, an int32 array [] in a compiled step; positions [rows] int32."""

    start: int | mx.array
    positions: mx.array

    @property
    def stop(self) -> int | None:
        """The position after the last row, None in a compiled step."""
        return self.start + self.positions.shape[0] if isinstance(self.start, int) else None
