"""The new rows of one sequence in a pass, and rows of several sequences, which lie end to end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import mlx.core as mx


class RowSpan(NamedTuple):
    """start: the first row's position, an int32 array [] in a compiled step; positions [rows] int32."""

    start: int | mx.array
    positions: mx.array

    @property
    def num(self) -> int:
        """How many rows."""
        return self.positions.shape[0]

    @property
    def stop(self) -> int | None:
        """The position after the last row, None in a compiled step."""
        return self.start + self.num if isinstance(self.start, int) else None


def split_rows(x: mx.array, counts: Sequence[int]) -> list[mx.array]:
    """The rows of each sequence; x [rows, ...] holds `counts` of them end to end."""
    return [x] if len(counts) == 1 else list(mx.split(x, list(accumulate(counts))[:-1]))


def joined_rows(parts: Sequence[mx.array]) -> mx.array:
    """The inverse of `split_rows`."""
    return parts[0] if len(parts) == 1 else mx.concatenate(list(parts))


@lru_cache(maxsize=256)  # each layer of a pass asks for the same
def starts_of(counts: tuple[int, ...]) -> mx.array:
    """Where the rows of each sequence begin, and at last where they end: [sequences + 1] int32."""
    return mx.array([0, *accumulate(counts)], dtype=mx.int32)
