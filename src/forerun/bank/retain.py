"""What is worth keeping: pure policy. Knows positions and sizes, nothing of records, tiers or time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SNAPSHOTS_IN_RAM = 5
TURN_S = 2400.0  # by how much each turn that a conversation has had lets it outlast one that was used as lately
MOST_TURNS = 4  # after so many a conversation is no one-shot: a new one must not stay behind those of the last hours for long
APART_TOKENS = 1024  # of marks on the way, the least
MOST_COST = 1 / 4  # of marks on the way, in bytes: of the keys and values of the tokens that they save
OWN_TOKENS = 1024  # what a conversation reads again rather than have one of another name copied


@dataclass(frozen=True, slots=True)
class Reuse:
    """What is known of a prompt before it is read: it goes on after `reused` tokens, a stored conversation begins with `shared` of them;
    snapshot_tokens: the size of a mark in tokens of keys and values.
    """

    reused: int
    shared: int
    snapshot_tokens: float


def snapshot_positions(tokens: Sequence[int], message_end: int, stop_ids: frozenset[int], known: Reuse) -> frozenset[int]:
    """Where the prompt of a turn leaves marks: after its first message (other conversations begin with it too), before the generation
    suffix (which may be rendered otherwise in the next turn), at its end (the same request again), and on the way.
    """
    ends = [i + 1 for i, token in enumerate(tokens[:message_end]) if token in stop_ids]
    head = ends[0] if ends else message_end
    return frozenset({head, message_end, len(tokens), *_intermediate(ends, max(head, known.reused), message_end, known)} - {0})


def _intermediate(ends: Sequence[int], start: int, message_end: int, known: Reuse) -> set[int]:
    """Where the prompt parts from a stored conversation, since where two have parted a third may; and ends of messages, behind which a
    client may change the next one: no nearer to each other than a mark is worth.
    """
    found = {known.shared} if known.reused + APART_TOKENS <= known.shared <= message_end - APART_TOKENS else set[int]()
    apart = max(APART_TOKENS, known.snapshot_tokens / MOST_COST)
    for end in ends:
        if end > start and all(abs(end - other) >= apart for other in (start, message_end, *found)):
            found.add(end)
    return found


def for_disk(new: Sequence[int], message_end: int) -> set[int]:
    """Of the marks that a turn has made, by position, those that go to disk: all up to the generation suffix, before which the same request
    again or an answer that is rendered otherwise goes on, and the last, where the next turn does. That is two for most turns (a mark may
    be 150 MB); those on the way come once, with the messages that they stand between.
    """
    return {p for p in new if p <= message_end} | set(new[-1:])


def rank_s(used_s: float, turns: int, worth_frac: float) -> float:
    """What goes when room is short: the lowest rank first. A moment, Unix seconds: the last use, and later for what is likely to return.

    A conversation of many turns is likelier to return than one of a single turn (a title, a summary). worth_frac: see `snapshot_value_frac`;
    1 for segments, without which no mark is of use.
    """
    return used_s + TURN_S * min(turns, MOST_TURNS) * worth_frac


def snapshot_value_frac(saved_tokens: int, cost_tokens: float) -> float:
    """What a mark is worth, 0 to 1: tokens that need not be read again thanks to it and not to the mark before it, against its size in
    tokens' bytes.
    """
    return saved_tokens / (saved_tokens + cost_tokens) if saved_tokens else 0.0


def in_ram(positions: Sequence[int]) -> set[int]:
    """Of a live conversation's marks, in order, those that stay with it: the first and the latest."""
    return set(positions[:1]) | set(positions[-(SNAPSHOTS_IN_RAM - 1) :])


def takes_over(length: int, position: int, first_snapshot: int) -> bool:
    """Whether a prompt that leaves a live conversation of `length` tokens at `position` goes on in its cache, or beside it.

    What lies beyond is cut off (it is on disk, if there is one). What goes on from the end and an edit of the last turn take over; a second
    conversation with the same beginning, which leaves at the first mark, does not.
    """
    return position == length or (position > first_snapshot and (length - position) * 4 <= position)


def keeps_name(length: int, position: int) -> bool:
    """Whether a prompt that leaves a stored conversation of `length` tokens at `position` is the same conversation, edited."""
    return position * 2 >= length
