"""The state of an answer: reasoning, stop tokens, rollback."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.grammar.answers import END, SCHEMA, THINKING, TOKENIZER, compiled, tokens, walk

from forerun.errors import BadRequestError


def test_a_schema_holds_the_text_behind_the_reasoning() -> None:
    for seed in range(20):
        answer = walk(compiled(SCHEMA).matcher(), random.Random(seed))
        thought, _, text = TOKENIZER.decode(answer).partition("</think>")
        assert set(json.loads(text.removesuffix("<|im_end|>").removesuffix("<|endoftext|>"))) == {"a", "b"}, thought


def test_reasoning_cannot_end_the_answer() -> None:
    matcher = compiled(SCHEMA).matcher()
    matcher.accept(tokens("Hm")[0])
    mask = matcher.allowed()
    assert mask is not None
    assert not mask[END]
    with pytest.raises(ValueError, match="not allowed"):
        matcher.accept(END)


def test_a_budget_closes_the_reasoning() -> None:
    matcher = compiled(None, reasoning_tokens=2).matcher()
    assert matcher.allowed() is None
    matcher.accept(tokens("a")[0])
    matcher.accept(tokens("b")[0])
    assert matcher.forced() == tokens("\n</think>")
    for token in tokens("\n</think>"):
        mask = matcher.allowed()
        assert mask is not None
        assert mask.nonzero()[0].tolist() == [token]
        matcher.accept(token)
    assert matcher.allowed() is None


def test_a_budget_of_nothing_closes_at_once() -> None:
    assert compiled(None, reasoning_tokens=0).matcher().forced() == tokens("\n</think>")


def test_a_keyword_that_is_not_supported_is_named_with_its_path() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {"type": "string"}}}}}
    with pytest.raises(BadRequestError, match=r"schema\.properties\.a\.items\.not cannot be enforced"):
        compiled(schema)
    assert compiled(schema, is_strict=False).unenforced


def test_thinking_that_is_off_starts_with_the_body() -> None:
    mask = compiled(SCHEMA, args=THINKING | {"enable_thinking": False}).matcher().allowed()
    assert mask is not None
    assert not mask[tokens("<think>")[0]]
