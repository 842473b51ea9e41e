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

    @property
    def apart_tokens(self) -> float:
        """Least distance between two intermediate snapshots, so that each is worth its bytes."""
        return max(APART_TOKENS, self.snapshot_tokens / MOST_COST)


def snapshot_positions(
    tokens: Sequence[int], message_end: int, stop_ids: frozenset[int], reuse: Reuse, borders: Sequence[int]
) -> frozenset[int]:
    """Where the prefill of a prompt makes snapshots: after the first message (other conversations share it), before the generation suffix
    (the next turn may render it differently), at the end (the same request again), and in between where they are worth their size.
    borders: between the parts of the first message, the most important first.
    """
    ends = [i + 1 for i, token in enumerate(tokens[:message_end]) if token in stop_ids]
    head = first_message_end(tokens, message_end, stop_ids) or message_end
    found = _between_parts([border for border in borders if border < head], reuse)
    return frozenset({head, message_end, len(tokens), *_intermediate(ends, max(head, reuse.reused), message_end, reuse, found)} - {0})


def first_message_end(tokens: Sequence[int], message_end: int, stop_ids: frozenset[int]) -> int:
    """The number of tokens of the first message; 0 if none ends before `message_end`, as in a prompt of token ids or of plain text."""
    return next((i + 1 for i, token in enumerate(tokens[:message_end]) if token in stop_ids), 0)


def _between_parts(borders: Sequence[int], reuse: Reuse) -> set[int]:
    """Borders between parts of the first message, which agents send again with other parts: no closer to each other than a snapshot is
    worth. The end of the message may be near: a prompt that diverges within it cannot use the snapshot there.
    """
    found, apart = set[int](), reuse.apart_tokens
    for border in borders:
        if border > reuse.reused and all(abs(border - other) >= apart for other in (reuse.reused, *found)):
            found.add(border)
    return found


def _intermediate(ends: Sequence[int], start: int, message_end: int, reuse: Reuse, borders: set[int]) -> set[int]:
    """`borders`; where the prompt diverges from a stored conversation, as a third may diverge there too; and ends of messages, as clients
    edit whole messages: no closer to each other than a snapshot is worth.
    """
    found, apart = set(borders), reuse.apart_tokens
    is_apart = reuse.reused + APART_TOKENS <= reuse.shared <= message_end - APART_TOKENS
    if is_apart and all(abs(reuse.shared - border) >= APART_TOKENS for border in borders):
        found.add(reuse.shared)
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


def in_ram(positions: Sequence[int], head: int) -> set[int]:
    """Of a live conversation's snapshots, in order, those that stay in RAM: the first, those within and after the first message, which has
    `head` tokens, and the latest.
    """
    return {p for p in positions if p <= head} | set(positions[:1]) | set(positions[-(SNAPSHOTS_IN_RAM - 1) :])


def takes_over(length: int, position: int, head: int) -> bool:
    """Whether a prompt that leaves a live conversation of `length` tokens at `position` continues in its cache rather than in a copy.

    The rest of the cache is cut off (it is on disk, if there is one). So continue a next turn and an edit of the last turn; not a second
    conversation with the same beginning, which leaves at `head` or before.
    """
    return position == length or (position > head and (length - position) * 4 <= position)


def keeps_name(length: int, position: int) -> bool:
    """Whether a prompt that leaves a stored conversation of `length` tokens at `position` is the same conversation, edited."""
    return position * 2 >= length
