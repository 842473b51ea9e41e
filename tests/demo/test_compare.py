"""Which played turns are as promised."""

from __future__ import annotations

from typing import Any

import pytest
from tests.wire import report

from forerun.demo.compare import NearTies, Verdict, faults, same_answer
from forerun.demo.turns import STEPS, Answer, Turn


def answer(text: str = "hello", num_tokens: int = 3, **fields: Any) -> Answer:
    of = report(**fields)
    return Answer(text, {"prompt_tokens": of["reused_tokens"] + of["computed_tokens"], "completion_tokens": num_tokens}, of)


def turn(step: int, answered: Answer, bypass: Answer | None = None) -> Turn:
    return Turn(STEPS[step], (), answered, bypass or answer(answered.text, reused=0, computed=answered.usage["prompt_tokens"]))


def miscounted(prompt_tokens: int) -> Turn:
    answered = Answer("hello", {"prompt_tokens": prompt_tokens, "completion_tokens": 3}, report("ssd", 98, 30))
    return turn(1, answered, answer(computed=127))


def never(turn: Turn) -> NearTies:
    raise AssertionError("called for near-ties")


GOOD = [turn(0, answer(computed=100)), turn(1, answer(source="ssd", reused=98, computed=30))]
SAME = [Verdict(True, "equal", "equal")] * 2


def test_turns_as_promised_have_no_fault() -> None:
    assert faults(GOOD, SAME) == []


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        (turn(1, answer(source="cold", computed=130, reason="no snapshot")), "A2: restored from cold, not ssd (no snapshot)"),
        (turn(1, answer(source="ssd", reused=80, computed=50, reason="far")), "A2: reused 80 of 100 cached tokens (far)"),
        (turn(1, GOOD[1].answer, answer(source="ram", reused=98, computed=32)), "A2: the bypass request reused 98 tokens (ram)"),
        (miscounted(127), "A2: 98 reused + 30 computed tokens != 127 prompt tokens"),
        (miscounted(129), "A2: 98 reused + 30 computed tokens != 129 prompt tokens"),
    ],
)
def test_faults(second: Turn, fault: str) -> None:
    assert faults([GOOD[0], second], SAME) == [fault]


def test_another_answer_is_a_fault() -> None:
    assert faults(GOOD, [SAME[0], Verdict(False, "OTHER", "different")]) == [
        "A2: the answer differs from the one without stored state (different)"
    ]


def test_equal_answers_need_no_teacher_forcing() -> None:
    assert same_answer(turn(0, answer(numerics="fast")), never) == Verdict(True, "equal", "equal")


@pytest.mark.parametrize("other", [answer("hallo"), answer("hello", num_tokens=4)])
def test_exact_means_token_for_token(other: Answer) -> None:
    assert same_answer(turn(0, answer(), other), never) == Verdict(False, "OTHER", "different")


@pytest.mark.parametrize(("gap", "is_same"), [(2e-4, True), (5e-4, False)])
def test_fast_allows_near_ties_within_the_bound(gap: float, is_same: bool) -> None:
    verdict = same_answer(turn(0, answer(numerics="fast"), answer("hallo")), lambda _: NearTies(2, gap, 3e-4))
    assert (verdict.is_same, verdict.short) == (is_same, "ties" if is_same else "OTHER")
    assert verdict.text == f"2 near-ties, largest gap {gap:.1e} {'<=' if is_same else '>'} bound 3.0e-04"
