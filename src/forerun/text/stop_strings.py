"""Finding any of several strings in text that arrives in pieces: an automaton that reads one character at a time (Aho and Corasick, 1975).

Knows nothing of tokens or answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

START = 0


class StopMatcher:
    """States are numbers; START has read nothing. A state's depth is the length of the longest beginning of a string that was just read."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._matched = [0]
        self._fallback = [START]
        for string in strings:
            self._add(string)
        self._link()

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while char not in self._children[state] and state != START:
            state = self._fallback[state]
        return self._children[state].get(char, START)

    def depth(self, state: int) -> int:
        """Number of characters just read that may yet turn out to begin a string."""
        return self._depth[state]

    def matched(self, state: int) -> int:
        """Length of the longest string that ends here, 0 if none does."""
        return self._matched[state]

    def _add(self, string: str) -> None:
        state = START
        for char in string:
            if char not in self._children[state]:
                self._children[state][char] = len(self._children)
                self._children.append({})
                self._depth.append(self._depth[state] + 1)
                self._matched.append(0)
                self._fallback.append(START)
            state = self._children[state][char]
        self._matched[state] = len(string)

    def _link(self) -> None:
        """Let each state fall back to the longest proper ending of it that is a state too, shallow states first."""
        queue = deque(self._children[START].values())
        while queue:
            state = queue.popleft()
            for char, child in self._children[state].items():
                self._fallback[child] = self.step(self._fallback[state], char)
                self._matched[child] = self._matched[child] or self._matched[self._fallback[child]]
                queue.append(child)
