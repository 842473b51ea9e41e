"""Retention policy: where a prompt has snapshots, which of them stay, and when a prompt continues in a live cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from forerun.bank import policy

END = 0
NOTHING = policy.Reuse(reused=0, shared=0, snapshot_tokens=100.0)


def test_a_prompt_has_snapshots_after_its_first_message_before_its_suffix_and_at_its_end() -> None:
    tokens = [5, 6, END, 7, 8, END, 9, 10]
    assert policy.snapshot_positions(tokens, 6, frozenset({END}), NOTHING, ()) == {3, 6, 8}


@pytest.mark.parametrize(
    ("tokens", "message_end", "expected"),
    [([5, 6, 7], 2, {2, 3}), ([5, 6, END], 2, {2, 3}), ([5], 0, {1}), ([END, 5, 6], 3, {1, 3})],
    ids=["no end of a message", "the end of a message in the suffix", "nothing but the suffix", "an empty first message"],
)
def test_odd_prompts(tokens: list[int], message_end: int, expected: set[int]) -> None:
    assert policy.snapshot_positions(tokens, message_end, frozenset({END}), NOTHING, ()) == expected


def intermediate(ends: list[int], borders: Sequence[int] = (), **reuse: float) -> set[int]:
    """Intermediate snapshots of a prompt of 10,000 tokens before the suffix, whose messages end at `ends`."""
    tokens = [END if i + 1 in ends else 5 for i in range(10_005)]
    parts = tokens, 10_000, frozenset({END})
    positions = policy.snapshot_positions(*parts, replace(NOTHING, **reuse), borders)  # type: ignore[arg-type]
    assert {ends[0], 10_000, 10_005} <= positions
    return set(positions - {ends[0], 10_000, 10_005})


@pytest.mark.parametrize(
    ("ends", "reuse", "expected"),
    [
        ([100, 600, 1200, 2300, 2400, 9500], {}, {1200, 2300}),
        ([100, 600, 1200, 2300, 2400, 9500], {"reused": 1200}, {2300}),
        ([100, 600, 1200, 2300, 2400, 9500], {"snapshot_tokens": 500.0}, {2300}),
        ([100, 600, 1200, 2300, 2400, 9500], {"snapshot_tokens": 5000.0}, set()),
        ([100], {"reused": 100, "shared": 1123}, set()),
        ([100], {"reused": 100, "shared": 1124}, {1124}),
        ([100, 1200, 3000], {"reused": 100, "shared": 1500}, {1500, 3000}),
        ([5000], {"reused": 100, "shared": 3000}, {3000}),
        ([100], {"reused": 100, "shared": 9500}, set()),
        ([100], {"reused": 100, "shared": 10_005}, set()),
    ],
    ids=[
        "ends",
        "reused ones",
        "costly",
        "too costly",
        "near",
        "diverged",
        "diverged among ends",
        "diverged in the first message",
        "diverged at the end",
        "the same",
    ],
)
def test_a_long_prompt_has_intermediate_snapshots_where_they_are_worth_it(
    ends: list[int], reuse: dict[str, float], expected: set[int]
) -> None:
    assert intermediate(ends, **reuse) == expected


@pytest.mark.parametrize(
    ("borders", "reuse", "expected"),
    [
        ([2000], {}, {2000}),
        ([1000], {}, set()),
        ([4900], {}, {4900}),
        ([5100], {}, set()),
        ([3000, 1100, 2100, 4500], {}, {3000, 1100, 4500}),
        ([2000], {"reused": 1500}, set()),
        ([2000, 4000], {"reused": 2000}, {4000}),
        ([2000, 4000], {"reused": 5000}, set()),
        ([2000, 4000], {"snapshot_tokens": 900.0}, {4000}),
        ([2000], {"snapshot_tokens": 1300.0}, set()),
        ([2000], {"shared": 2020}, {2000}),
        ([2000], {"shared": 3100}, {2000, 3100}),
    ],
    ids=[
        "one",
        "near the start",
        "near the end",
        "beyond the first message",
        "the important one first",
        "near what is reused",
        "reused ones",
        "all reused",
        "costly",
        "too costly",
        "diverged there",
        "diverged elsewhere",
    ],
)
def test_a_long_first_message_has_snapshots_between_its_parts(borders: list[int], reuse: dict[str, float], expected: set[int]) -> None:
    assert intermediate([5000], borders, **reuse) == expected


@pytest.mark.parametrize(
    ("new", "message_end", "expected"),
    [
        ([], 7, set()),
        ([4], 7, {4}),
        ([4, 9], 4, {4, 9}),
        ([2, 6, 7, 9], 6, {2, 6, 9}),
        ([6, 7, 9], 6, {6, 9}),
        ([7, 9], 3, {9}),
        ([2, 3, 4, 6, 7, 9], 6, {2, 3, 4, 6, 9}),
    ],
    ids=[
        "none",
        "cancelled during prefill",
        "a later turn, nothing after the suffix",
        "a first turn",
        "a later turn",
        "repeated",
        "intermediate",
    ],
)
def test_of_a_turn_the_snapshots_up_to_the_suffix_and_the_last_go_to_disk(new: list[int], message_end: int, expected: set[int]) -> None:
    assert policy.for_disk(new, message_end) == expected


def test_a_conversation_of_many_turns_outlasts_one_of_a_single_turn_but_not_for_ever() -> None:
    now_s, hour_s = 1e9, 3600.0
    title = policy.rank_s(now_s, 1, 1.0)
    assert policy.rank_s(now_s - hour_s, 10, 1.0) > title
    assert policy.rank_s(now_s - 3 * hour_s, 1000, 1.0) < title
    assert policy.rank_s(now_s, 2, 1.0) > title > policy.rank_s(now_s - hour_s, 1, 1.0)


def test_a_snapshot_is_worth_what_it_saves_against_its_size() -> None:
    assert policy.snapshot_value_frac(0, 100.0) == 0.0
    assert policy.snapshot_value_frac(100, 100.0) == 0.5
    assert policy.snapshot_value_frac(10, 100.0) < 0.1 < 0.9 < policy.snapshot_value_frac(1000, 100.0) < 1.0


@pytest.mark.parametrize("num", range(9))
def test_the_first_snapshot_and_the_latest_stay_in_ram(num: int) -> None:
    positions = list(range(10, 10 + num))
    staying = policy.in_ram(positions, 0)
    assert staying == set(positions if num <= 5 else [positions[0], *positions[-4:]])


def test_snapshots_of_the_first_message_stay_in_ram_too() -> None:
    assert policy.in_ram([10, 20, 30, 40, 50, 60, 70, 80], 30) == {10, 20, 30, 50, 60, 70, 80}


@pytest.mark.parametrize(("position", "expected"), [(1000, True), (800, True), (799, False), (10, False)])
def test_a_prompt_takes_over_what_it_mostly_shares(position: int, expected: bool) -> None:
    assert policy.takes_over(1000, position, 5) == expected


def test_what_only_begins_alike_takes_nothing_over() -> None:
    assert not policy.takes_over(1000, 900, 900)
    assert policy.takes_over(1000, 901, 900)
    assert policy.takes_over(1000, 1000, 1000)


@pytest.mark.parametrize(("position", "expected"), [(1000, True), (500, True), (499, False)])
def test_an_edited_conversation_keeps_its_name(position: int, expected: bool) -> None:
    assert policy.keeps_name(1000, position) == expected
