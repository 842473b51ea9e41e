"""Search for strings in text that arrives in pieces: the first complete one, and a prefix of one at the end. Knows no tokens or answers."""

from __future__ import annotations

from collections.abc import Sequence


def first_match(text: str, strings: Sequence[str], num_searched: int) -> str:
    """The string whose occurrence in the text ends first, the longest of several that end there; "" if none occurs. None ends within the
    first `num_searched` characters.
    """
    starts = ((text.find(string, max(0, num_searched + 1 - len(string))), string) for string in strings)
    return min(((start + len(string), -len(string), string) for start, string in starts if start >= 0), default=(0, 0, ""))[2]


def partial_overlap(text: str, strings: Sequence[str]) -> int:
    """Length of the longest suffix of the text that is a proper prefix of one of the strings."""
    longest = min(len(text), max(map(len, strings), default=1) - 1)
    ends = (text[len(text) - length :] for length in range(longest, 0, -1))
    return next((len(end) for end in ends if any(end != string and string.startswith(end) for string in strings)), 0)
