"""What is worth keeping: pure policy. Knows positions and sizes, nothing of records, tiers or time."""

from __future__ import annotations

from collections.abc import Sequence

MARKS_IN_RAM = 5


def marks_at(tokens: Sequence[int], message_end: int, stop_ids: frozenset[int]) -> frozenset[int]:
    """Where the prompt of a turn leaves marks: after its first message (other conversations begin with it too), before the generation
    suffix (which may be rendered otherwise in the next turn), and at its end (the same request again).
    """
    head = next((i + 1 for i, token in enumerate(tokens[:message_end]) if token in stop_ids), message_end)
    return frozenset({head, message_end, len(tokens)} - {0})


def for_disk(new: Sequence[int]) -> set[int]:
    """Of the marks that a turn has made, by position, those that go to disk: the last, where the next turn goes on, and the first (at the
    first turn the one after the first message, later the one before the generation suffix). Two at most: a mark may be 150 MB.
    """
    return {new[0], new[-1]} if new else set()


def in_ram(positions: Sequence[int]) -> set[int]:
    """Of a live conversation's marks, in order, those that stay with it: the first and the latest."""
    return set(positions[:1]) | set(positions[-(MARKS_IN_RAM - 1) :])


def takes_over(length: int, position: int) -> bool:
    """Whether a prompt that leaves a live conversation of `length` tokens at `position` goes on in its cache, or beside it.

    What lies beyond is cut off (it is on disk, if there is one). An edit of the last turn takes over; a second conversation with the same
    beginning does not.
    """
    return (length - position) * 4 <= position
