"""A compiled grammar, from which each answer's state is copied, and a cache of them. Knows what llguidance can refuse; no JSON schemas."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from llguidance import LLMatcher, LLParserLimits

from forerun.grammar.vocabulary import Vocabulary

MOST_PROGRAMS = 64
# Chosen so that a hostile grammar is refused within a second on a slow core: benchmarks/grammar.py. States are about 1-2 KB each.
LIMITS = LLParserLimits(initial_lexer_fuel=4_000_000, step_lexer_fuel=200_000, max_lexer_states=100_000, verbose_errors=False)


class GrammarError(Exception):
    """llguidance refuses a grammar, or gives up on one while it is followed."""


class Program:
    """A grammar for a vocabulary. warnings: what of it is not held. Raises GrammarError. The first mask is computed here, too, since a
    grammar that cannot be followed is often only found out by then.
    """

    def __init__(self, vocabulary: Vocabulary, lark: str) -> None:
        self._vocabulary = vocabulary
        self._prototype = LLMatcher(vocabulary.tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0, limits=LIMITS)
        self._check(self._prototype)
        self.warnings = tuple(self._prototype.get_grammar_warnings())
        probe = self._prototype.deep_copy()
        probe.compute_bitmask()
        self._check(probe)
        self._follows: dict[bytes, bool] = {}

    def start(self, given: bytes = b"") -> LLMatcher:
        """A state of its own, after the bytes that are given already, which `follows`."""
        state = self._prototype.deep_copy()
        if given and not state.consume_tokens(self._vocabulary.split(given)):
            raise GrammarError(state.get_error())
        return state

    def follows(self, given: bytes) -> bool:
        """Whether these bytes are a beginning of what the grammar allows."""
        known = self._follows.get(given)
        if known is None:
            tokens = self._vocabulary.split(given)
            known = self._follows[given] = self._prototype.deep_copy().validate_tokens(tokens) == len(tokens)
        return known

    def _check(self, state: LLMatcher) -> None:
        if state.is_error():
            raise GrammarError(state.get_error().strip())


class Programs:
    """The programs compiled last, by their grammars. May be used by several threads; each compiles without holding up the others."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self._lock = vocabulary, Lock()
        self._programs: OrderedDict[str, Program] = OrderedDict()

    def compile(self, grammar: str) -> Program:
        """The grammar's program. Raises GrammarError."""
        with self._lock:
            if grammar in self._programs:
                self._programs.move_to_end(grammar)
                return self._programs[grammar]
        program = Program(self.vocabulary, grammar)
        with self._lock:
            self._programs[grammar] = program
            while len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        return program
