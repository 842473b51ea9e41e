"""Search for strings in text that arrives in pieces: the first complete one, and a prefix of one at the end; and common prefixes.

Knows no answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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


def num_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of the common prefix of two texts, or two sequences of one type: by bisection, since comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
