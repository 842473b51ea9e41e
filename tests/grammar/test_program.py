"""A compiled grammar: states that share a lexer, and one that is full."""

from __future__ import annotations

import pytest
from llguidance import LLParserLimits
from tests.grammar.answers import GRAMMARS, tokens

from forerun.errors import BadRequestError
from forerun.grammar import program as module
from forerun.grammar.program import GrammarState, Program

COUNTED = 'start: T ";"\nT: /[^;]{0,5000}/'


def fed(state: GrammarState, text: str) -> None:
    for token in tokens(text):
        assert state.mask()[token]
        state.accept(token)


def test_a_full_lexer_is_replaced_and_the_answer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMITS", LLParserLimits(max_lexer_states=700))
    program = Program(GRAMMARS.vocabulary, COUNTED)
    states = [program.start() for _ in range(3)]
    for state in states:
        fed(state, "a b c " * 40)
    for state in states:
        state.rollback(5)
        fed(state, "x y z")
        fed(state, ";")
        assert state.is_accepting


def test_an_answer_that_fills_a_lexer_alone_fails_and_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMITS", LLParserLimits(max_lexer_states=300))
    state = Program(GRAMMARS.vocabulary, COUNTED).start()
    with pytest.raises(BadRequestError, match="too complex"):
        fed(state, "a b c " * 400)
