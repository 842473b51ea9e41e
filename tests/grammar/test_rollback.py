"""The state of an answer is a pure function of the tokens that stand, whatever was accepted, refused and taken back before."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from tests.grammar.answers import END, SCHEMA, closing, compiled, drawn, output
from tests.grammar.call_answers import ALL_GRAMMARS, ALL_TOKENS, FORMATS, SPELLED, SPELLED_GRAMMARS, calls_of, tool

from forerun.grammar.compile import Grammar
from forerun.grammar.matcher import Matcher
from forerun.values import CallRule

TOOLS = [
    tool("read", {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["path"]}),
    tool("stop", {"type": "object", "properties": {}}),
]
NUM_STEPS = 3000
GRAMMARS: dict[str, Callable[[], Grammar]] = {
    "schema": lambda: compiled(SCHEMA),
    "schema and budget": lambda: compiled(SCHEMA, reasoning_tokens=3),
    "budget alone": lambda: compiled(None, reasoning_tokens=3),
    "no thinking": lambda: compiled(SCHEMA, args={"enable_thinking": False}),
    "required": lambda: calls_of(FORMATS["qwen"], TOOLS, CallRule(is_required=True), is_thinking=True)[0],
    "auto": lambda: calls_of(FORMATS["qwen"], TOOLS, CallRule(), is_thinking=True)[0],
    "auto, one call": lambda: calls_of(FORMATS["glm"], TOOLS, CallRule(is_parallel=False))[0],
    "bare calls": lambda: calls_of(FORMATS["llama"], TOOLS, CallRule())[0],
    "output or calls": lambda: calls_of(FORMATS["hermes"], TOOLS, CallRule(), output=output(SCHEMA))[0],
    "tags spelled out": lambda: calls_of(FORMATS["hermes"], TOOLS, CallRule(), is_thinking=True, grammars=SPELLED_GRAMMARS)[0],
    "tags spelled out, required": lambda: calls_of(
        FORMATS["qwen"], TOOLS, CallRule(is_required=True), is_thinking=True, grammars=SPELLED_GRAMMARS
    )[0],
}
OPENINGS = ("<tool_call>\n", '{"name": "read", "parameters": ', "<function=stop>", "</think>", "<think>")


@pytest.mark.parametrize("name", GRAMMARS)
def test_any_steps_lead_to_the_state_of_a_fresh_matcher(name: str) -> None:
    grammar, rng, stands = GRAMMARS[name](), random.Random(name), list[int]()
    matcher = grammar.matcher()
    encode = (SPELLED if "spelled" in name else ALL_TOKENS).encode_alone
    for step in range(NUM_STEPS):
        advance(matcher, rng, stands, encode)
        if step % 20 == 0 or len(stands) > 150:
            check_equal(matcher, grammar, stands)
    check_equal(matcher, grammar, stands)


def advance(matcher: Matcher, rng: random.Random, stands: list[int], encode: Callable[[str], list[int]]) -> None:
    """One random step: tokens accepted, one refused, or some taken back."""
    kind = rng.random()
    if kind < 0.25 or len(stands) > 150:
        num = rng.choice((1, 1, 2, 3, len(stands)) if len(stands) < 150 else (len(stands), 140))
        num = min(num, len(stands))
        matcher.rollback(num)
        del stands[len(stands) - num :]
    elif kind < 0.35:
        refuse(matcher, rng)
    else:
        for token in (
            encode(rng.choice(OPENINGS)) if kind < 0.5 else closing(matcher, rng, encode) if kind < 0.65 else [drawn(matcher, rng)]
        ):
            mask = matcher.allowed()
            if mask is not None and not mask[token]:
                break
            matcher.accept(token)
            stands.append(token)


def refuse(matcher: Matcher, rng: random.Random) -> None:
    mask = matcher.allowed()
    if mask is not None and len(refused := (~mask).nonzero()[0]):
        with pytest.raises(ValueError, match="not allowed"):
            matcher.accept(int(rng.choice(refused)))


def check_equal(matcher: Matcher, grammar: Grammar, stands: list[int]) -> None:
    fresh = grammar.matcher()
    for token in stands:
        fresh.accept(token)
    one, other = matcher.allowed(), fresh.allowed()
    assert (one is None) == (other is None)
    assert one is None or other is None or np.array_equal(one, other)
    assert one is None or one.any()
    assert matcher.forced() == fresh.forced()


def test_a_stop_token_is_taken_back_alone() -> None:
    """llguidance does not count one: taking it back would take the last token of the answer as well."""
    matcher = compiled({"const": 1}, args={"enable_thinking": False}).matcher()
    for text in ("1", "<|im_end|>"):
        matcher.accept(ALL_TOKENS.encode_alone(text)[0])
    ended = matcher.allowed()
    assert ended is not None
    assert set(ended.nonzero()[0].tolist()) == set(ALL_TOKENS.stop_ids)
    matcher.rollback(1)
    mask = matcher.allowed()
    assert mask is not None
    assert mask[END]
    assert not mask[ALL_TOKENS.encode_alone("1")[0]]


def test_padded_rows_are_never_allowed() -> None:
    for name in GRAMMARS:
        mask = GRAMMARS[name]().matcher().allowed()
        assert mask is None or not mask[ALL_TOKENS.size :].any()
    assert ALL_GRAMMARS.vocabulary.size > ALL_TOKENS.size
