"""What is worth keeping: where a prompt leaves marks, which of them stay, and when a prompt goes on in a live cache."""

from __future__ import annotations

import pytest

from forerun.bank import retain

END = 0


def test_a_prompt_leaves_marks_at_its_first_message_before_its_suffix_and_at_its_end() -> None:
    tokens = [5, 6, END, 7, 8, END, 9, 10]
    assert retain.marks_at(tokens, 6, frozenset({END})) == {3, 6, 8}


@pytest.mark.parametrize(
    ("tokens", "message_end", "expected"),
    [([5, 6, 7], 2, {2, 3}), ([5, 6, END], 2, {2, 3}), ([5], 0, {1}), ([END, 5, 6], 3, {1, 3})],
    ids=["no end of a message", "the end of a message in the suffix", "nothing but the suffix", "an empty first message"],
)
def test_odd_prompts(tokens: list[int], message_end: int, expected: set[int]) -> None:
    assert retain.marks_at(tokens, message_end, frozenset({END})) == expected


@pytest.mark.parametrize(("new", "expected"), [([], set()), ([4], {4}), ([4, 9], {4, 9}), ([4, 6, 7, 9], {4, 9})])
def test_two_marks_of_a_turn_at_most_go_to_disk(new: list[int], expected: set[int]) -> None:
    assert retain.for_disk(new) == expected


@pytest.mark.parametrize("num", range(9))
def test_the_first_mark_and_the_latest_stay_in_ram(num: int) -> None:
    positions = list(range(10, 10 + num))
    staying = retain.in_ram(positions)
    assert staying == set(positions if num <= 5 else [positions[0], *positions[-4:]])


@pytest.mark.parametrize(("position", "expected"), [(1000, True), (800, True), (799, False), (10, False)])
def test_a_prompt_takes_over_what_it_mostly_shares(position: int, expected: bool) -> None:
    assert retain.takes_over(1000, position) == expected
