"""Retention policy: which snapshots are made and stored, and what is evicted first. Pure: positions and sizes only, no records or tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SNAPSHOTS_IN_RAM = 5
TURN_S = 2400.0  # by how much each turn of a conversation raises its rank over one that was used as recently
MOST_TURNS = 4  # turns that raise the rank: a new conversation must not rank below those of the last hours for long
APART_TOKENS = 1024  # least distance between intermediate snapshots
MOST_COST = 1 / 4  # of an intermediate snapshot: its bytes, over those of the keys and values of the tokens that it saves
OWN_TOKENS = 1024  # that a conversation computes again rather than copy one of another name


@dataclass(frozen=True, slots=True)
class Reuse:
    """What is reused of a prompt before its prefill. reused: tokens whose state is restored. shared: length of the longest prefix that a
    stored conversation has too. snapshot_tokens: a snapshot's size in tokens of keys and values.
    """

    reused: int
    shared: int
    snapshot_tokens: float


def snapshot_positions(tokens: Sequence[int], message_end: int, stop_ids: frozenset[int], reuse: Reuse) -> frozenset[int]:
    """Where the prefill of a prompt makes snapshots: after the first message (other conversations share it), before the generation suffix
    (the next turn may render it differently), at the end (the same request again), and in between where they are worth their size.
    """
    ends = [i + 1 for i, token in enumerate(tokens[:message_end]) if token in stop_ids]
    head = ends[0] if ends else message_end
    return frozenset({head, message_end, len(tokens), *_intermediate(ends, max(head, reuse.reused), message_end, reuse)} - {0})


def _intermediate(ends: Sequence[int], start: int, message_end: int, reuse: Reuse) -> set[int]:
    """Where the prompt diverges from a stored conversation, as a third may diverge there too; and ends of messages, as clients edit whole
    messages: no closer to each other than a snapshot is worth.
    """
    found = {reuse.shared} if reuse.reused + APART_TOKENS <= reuse.shared <= message_end - APART_TOKENS else set[int]()
    apart = max(APART_TOKENS, reuse.snapshot_tokens / MOST_COST)
    for end in ends:
        if end > start and all(abs(end - other) >= apart for other in (start, message_end, *found)):
            found.add(end)
    return found


def for_disk(new: Sequence[int], message_end: int) -> set[int]:
    """Positions of a turn's new snapshots that go to disk: all up to the generation suffix, before which the same request again or a
    differently rendered answer continues, and the last, where the next turn continues. Two for most turns (a snapshot may be 150 MB);
    intermediate ones once, with the messages that they lie between.
    """
    return {p for p in new if p <= message_end} | set(new[-1:])


def rank_s(used_s: float, turns: int, worth_frac: float) -> float:
    """Eviction rank, the lowest first: the time of last use (Unix seconds), and later for what is likely to be used again.

    A conversation of many turns is likelier to return than one of a single turn (a title, a summary). worth_frac: `snapshot_value_frac`; 1
    for segments, without which no snapshot is usable.
    """
    return used_s + TURN_S * min(turns, MOST_TURNS) * worth_frac


def snapshot_value_frac(saved_tokens: int, cost_tokens: float) -> float:
    """Value of a snapshot, 0 to 1: the tokens that it saves beyond the one before it, against its size in tokens of keys and values."""
    return saved_tokens / (saved_tokens + cost_tokens) if saved_tokens else 0.0


def in_ram(positions: Sequence[int]) -> set[int]:
    """Of a live conversation's snapshots, in order, those that stay in RAM: the first and the latest."""
    return set(positions[:1]) | set(positions[-(SNAPSHOTS_IN_RAM - 1) :])


def takes_over(length: int, position: int, first_snapshot: int) -> bool:
    """Whether a prompt that leaves a live conversation of `length` tokens at `position` continues in its cache rather than in a copy.

    The rest of the cache is cut off (it is on disk, if there is one). So continue a next turn and an edit of the last turn; not a second
    conversation with the same beginning, which leaves at the first snapshot.
    """
    return position == length or (position > first_snapshot and (length - position) * 4 <= position)


def keeps_name(length: int, position: int) -> bool:
    """Whether a prompt that leaves a stored conversation of `length` tokens at `position` is the same conversation, edited."""
    return position * 2 >= length
