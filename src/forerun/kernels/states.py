"""The state of one recurrent layer for each sequence of a pass, as arrays of each or stacked, whichever its rule works on."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

Arrays = tuple[mx.array, ...]


class States:
    """Of sequence j: `of(j)`. Stacked ones are cut only when somebody asks: a batch that lasts copies nothing between its passes."""

    def __init__(self, each: Sequence[Arrays] = (), *, stacked: Arrays = ()) -> None:
        self._each, self._stacked = list(each), stacked

    def __len__(self) -> int:
        return self._stacked[0].shape[0] if self._stacked else len(self._each)

    def of(self, j: int) -> Arrays:
        """The arrays of sequence j."""
        return self.each()[j]

    def each(self) -> list[Arrays]:
        """The arrays of each sequence."""
        if not self._each:
            self._each = [tuple(array[j] for array in self._stacked) for j in range(len(self))]
        return self._each

    def stacked(self) -> Arrays:
        """Arrays [sequences, ...]."""
        if not self._stacked:
            parts = zip(*self._each, strict=True)
            self._stacked = tuple(part[0][None] if len(part) == 1 else mx.stack(list(part)) for part in parts)
        return self._stacked


StateRef = tuple[States, int]


def joined(refs: Sequence[StateRef]) -> States:
    """The states that these refer to, in this order: the very same ones if they are all of one pass."""
    states = refs[0][0]
    if all(ref == (states, j) for j, ref in enumerate(refs)) and len(states) == len(refs):
        return states
    return States([other.of(j) for other, j in refs])
