"""An answer that repeats itself is seen, whatever its period; one that only resembles a loop is not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests import tiny
from tests.decode.drafting import eager, generation
from tests.fake_family import FakeFamily
from tests.running import read

from forerun.decode.depth import policy_for
from forerun.decode.generate import Generation
from forerun.decode.loops import LEAST_TOKENS, MOST_PERIOD, REPEATS, LoopDetector
from forerun.values import GREEDY


def seen_after(tokens: Iterable[int]) -> int | None:
    detector = LoopDetector()
    return next((i for i, token in enumerate(tokens, 1) if detector.push(token)), None)


@pytest.mark.parametrize("period", [1, 2, 7, 100, MOST_PERIOD])
def test_a_loop_is_seen_as_soon_as_it_has_its_length(period: int) -> None:
    before, loop = list(range(1000, 1100)), list(range(period)) * (REPEATS + LEAST_TOKENS)
    seen = seen_after([*before, *loop])
    assert seen == len(before) + period + max(period * (REPEATS - 1), LEAST_TOKENS)


def test_a_longer_period_is_not() -> None:
    assert seen_after(list(range(MOST_PERIOD + 1)) * (REPEATS + 2)) is None


def test_a_table_that_counts_is_not() -> None:
    assert seen_after(token for row in range(400) for token in (1, 2, 3, 1000 + row, 4)) is None


def test_a_short_run_is_not_and_a_break_begins_anew() -> None:
    assert seen_after([5] * LEAST_TOKENS + [6] + [5] * LEAST_TOKENS) is None


@pytest.mark.parametrize("depth", [0, 2])
def test_an_answer_that_repeats_itself_ends_only_where_asked(depth: int) -> None:
    family = FakeFamily(lambda position, token, total: 5, tiny.VOCAB)

    def answered(loops: LoopDetector | None) -> Generation:
        cache, policy = read(family, [1, 2, 3]), policy_for(depth)
        answer = generation(eager(family), cache, [1, 2, 3], GREEDY, policy, max_tokens=400, loops=loops)
        list(answer)
        return answer

    assert answered(None).finish == "length"
    broken = answered(LoopDetector())
    assert broken.finish == "loop"
    assert len(broken.tokens) == LEAST_TOKENS + 1
    assert len(broken.store()) == 3 + len(broken.tokens) - 1
