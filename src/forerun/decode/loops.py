"""Finds an answer that repeats the same text again and again. Knows tokens alone."""

from __future__ import annotations

import numpy as np

MOST_PERIOD = 512  # tokens of the text that repeats
REPEATS = 8  # of it at the end of the answer
LEAST_TOKENS = 256  # in all: short texts repeat more often, as in a table's rule


class LoopDetector:
    """O(MOST_PERIOD) a token, about 3 microseconds."""

    def __init__(self) -> None:
        self._last = np.full(MOST_PERIOD, -1, dtype=np.int64)  # the newest first
        self._runs = np.zeros(MOST_PERIOD, dtype=np.int64)  # of tokens equal to that so many before, by period - 1
        self._wanted = np.maximum(np.arange(1, MOST_PERIOD + 1) * (REPEATS - 1), LEAST_TOKENS)

    def push(self, token: int) -> bool:
        """Whether the answer, with this token, ends in REPEATS or more equal parts of LEAST_TOKENS tokens or more."""
        self._runs = np.where(self._last == token, self._runs + 1, 0)
        self._last[1:] = self._last[:-1]
        self._last[0] = token
        return bool((self._runs >= self._wanted).any())
