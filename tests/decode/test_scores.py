"""Scores of an answer's and a prompt's tokens: under exact numerics those of plain decoding, bit for bit, however they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests import tiny
from tests.decode.drafting import SEEDED, TextPrompt, generation, plainly
from tests.decode.guessing import GuessingFamily
from tests.running import empty, read
from tests.talking import CONTIGUOUS, opened, turn
from tests.waiting import LIMIT_S

from forerun.decode import verification
from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.decode.prefill import prefill
from forerun.decode.scores import Score, prompt_scores, scores
from forerun.errors import NumericsError
from forerun.sampling.logprobs import logprobs
from forerun.state.cache import Cache
from forerun.state.conversion import relayout_as_chosen
from forerun.state.layout import Contiguous, Paged
from forerun.values import GREEDY, Sampling

FAMILY = tiny.family()
PROMPT = tiny.words("scores", 250)
NUM, TOP = 24, 4
SAMPLINGS = {"greedy": GREEDY, "seeded, penalised": SEEDED}


@cache
def plain_of(rule: str) -> tuple[TextPrompt, list[Score]]:
    """Plain decoding, and the scores of its logits, one row at a time. Shared: do not modify it."""
    plain = plainly(FAMILY, PROMPT, SAMPLINGS[rule], NUM)
    rows = [logprobs(plain.logits[i : i + 1], mx.array([token], dtype=mx.int32), TOP) for i, token in enumerate(plain.tokens)]
    return plain, [score for row in rows for score in scores(row)]


def answered(steps: StepTable, state: Cache[Any], sampling: Sampling, depth: int, **ends: Any) -> tuple[list[int], list[Score]]:
    """The tokens that were sampled, and their scores."""
    answer = generation(steps, state, PROMPT, sampling, DepthPolicy((depth,)), num_top=TOP, **{"max_tokens": NUM} | ends)
    if isinstance(steps.family, GuessingFamily):
        steps.family.generation = answer
    for _ in answer:
        assert len(answer.scores) == len(answer.sampled)
    return answer.sampled, answer.scores


@pytest.mark.parametrize("rule", SAMPLINGS)
@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_drafts_change_no_score(rule: str, depth: int) -> None:
    plain, expected = plain_of(rule)
    family: Any = GuessingFamily(FAMILY, plain.tokens, 0.6, seed=depth)
    tokens, found = answered(StepTable(family, eager_reason="test"), read(FAMILY, PROMPT), SAMPLINGS[rule], depth)
    assert tokens == plain.tokens
    assert found == expected
    assert all(list(score.top) == sorted(score.top, key=lambda each: -each[1]) and len(score.top) == TOP for score in found)


@pytest.mark.parametrize("layout", [Contiguous(), Paged(16)], ids=str)
def test_compiled_steps_and_layouts_change_no_score(layout: Contiguous | Paged) -> None:
    plain, expected = plain_of("greedy")
    state = relayout_as_chosen(read(FAMILY, PROMPT), layout)
    assert answered(StepTable(FAMILY, eager_reason=""), state, GREEDY, 2) == (plain.tokens, expected)


def test_a_restored_state_changes_no_score(tmp_path: Path) -> None:
    plain, expected = plain_of("greedy")
    bank = opened(tmp_path)
    turn(bank, PROMPT[:200])
    assert bank.flush(LIMIT_S)
    bank.close()
    bank = opened(tmp_path)
    restored = bank.restore(PROMPT, tenant="", session=None, layout=CONTIGUOUS, headroom_tokens=20)
    assert (restored.source, restored.reused_tokens > 0) == ("ssd", True)
    assert answered(StepTable(FAMILY, eager_reason="test"), read(FAMILY, PROMPT, restored.cache), GREEDY, 2) == (plain.tokens, expected)
    bank.close()


def test_the_token_that_ends_an_answer_has_a_score_too() -> None:
    plain, expected = plain_of("greedy")
    stop = plain.tokens[NUM // 2]
    last = plain.tokens.index(stop) + 1
    steps = StepTable(FAMILY, eager_reason="test")
    assert answered(steps, read(FAMILY, PROMPT), GREEDY, 3, stop_ids=frozenset([stop])) == (plain.tokens[:last], expected[:last])


def test_scores_that_nobody_requested_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> None:
        raise AssertionError(args)

    monkeypatch.setattr(verification, "logprobs", never)
    answer = generation(StepTable(FAMILY, eager_reason="test"), read(FAMILY, PROMPT), PROMPT, GREEDY, DepthPolicy((2,)), max_tokens=NUM)
    for _ in answer:
        pass
    assert (answer.tokens, answer.scores) == (plain_of("greedy")[0].tokens, [])
    with pytest.raises(AssertionError):
        answered(StepTable(FAMILY, eager_reason="test"), read(FAMILY, PROMPT), GREEDY, 2)


# --- a prompt's


def of_prompt(tokens: Sequence[int]) -> list[Score]:
    found = list[Score]()

    def on_chunk(start: int, hidden: mx.array) -> None:
        assert len(found) == start
        found.extend(prompt_scores(FAMILY, hidden, tokens[start + 1 : start + 1 + hidden.shape[0]], TOP))

    for _ in prefill(FAMILY, empty(FAMILY), tokens, [300], on_chunk):
        pass
    return found


def test_a_prompts_scores_are_those_of_plain_decoding() -> None:
    plain, expected = plain_of("seeded, penalised")
    found = of_prompt([*PROMPT, *plain.tokens])
    assert len(found) == len(PROMPT) + NUM - 1
    assert found[len(PROMPT) - 1 :] == expected


def test_a_prompts_scores_come_chunk_by_chunk_in_order() -> None:
    tokens = tiny.words("long", 1100)
    found = of_prompt(tokens)
    assert len(found) == len(tokens) - 1
    for position in (1, 32, 33, 512, 513, 1099):
        state = read(FAMILY, tokens[:position])
        (expected,) = scores(logprobs(FAMILY.head(state.hidden[None]), mx.array(tokens[position : position + 1], dtype=mx.int32), TOP))
        assert found[position - 1] == expected


def test_a_prompts_score_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(NumericsError):
        prompt_scores(FAMILY, mx.full((3, tiny.HIDDEN), np.nan), [1, 2, 3], TOP)
