"""A compiled grammar, the state of an answer under it, and a cache of grammars. Knows what llguidance can refuse; no JSON schemas.

States that are copied from one grammar share its lexer, which grows with what was said under it and is full at some point: then all of
them fail. So a state that fails is rebuilt from its tokens under a new lexer, once.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from forerun.errors import BadRequestError
from forerun.grammar.vocabulary import Vocabulary

K = TypeVar("K")
V = TypeVar("V")
MOST_PROGRAMS = 64
# Chosen so that a hostile grammar is refused within a second on a slow core: benchmarks/grammar.py. A state is about 1-2 KB.
LIMITS = LLParserLimits(
    max_items_in_row=10_000, initial_lexer_fuel=4_000_000, step_max_items=200_000, max_lexer_states=100_000, verbose_errors=False
)


class GrammarError(Exception):
    """llguidance refuses a grammar."""


class Program:
    """A grammar in Lark for a vocabulary. warnings: what of it is not held. Raises GrammarError. The first mask is computed here, too:
    that a grammar cannot be followed is often only found out by then.
    """

    def __init__(self, vocabulary: Vocabulary, lark: str) -> None:
        self.vocabulary, self._lark = vocabulary, lark
        self._prototype = self._compiled()
        self.warnings = tuple(self._prototype.get_grammar_warnings())
        self._follows: dict[bytes, bool] = {}
        _check_begins(self._prototype.deep_copy())

    def start(self, given: bytes = b"") -> GrammarState:
        """A state of its own, after the bytes that are given already, which `follows`."""
        return GrammarState(self, self.vocabulary.split(given) if given else [])

    def follows(self, given: bytes) -> bool:
        """Whether these bytes are a beginning of what the grammar allows."""
        known = self._follows.get(given)
        if known is None:
            tokens = self.vocabulary.split(given)
            known = self._follows[given] = self._prototype.deep_copy().validate_tokens(tokens) == len(tokens)
        return known

    def copied(self) -> LLMatcher:
        """The state before the first token. Shares its lexer with others."""
        return self._prototype.deep_copy()

    def renewed(self) -> LLMatcher:
        """The same with a new lexer, which later copies share."""
        self._prototype = self._compiled()
        return self.copied()

    def _compiled(self) -> LLMatcher:
        state = LLMatcher(self.vocabulary.tokenizer, LLMatcher.grammar_from_lark(self._lark), log_level=0, limits=LIMITS)
        _check(state)
        return state


class GrammarState:
    """A grammar after some tokens. given: tokens before the first, not to be taken back. Stop tokens are none of them.

    Raises BadRequestError where llguidance gives up on the grammar: its mask would then end the answer as if it were whole.
    """

    def __init__(self, program: Program, given: list[int]) -> None:
        self._program, self._tokens, self._num_given = program, given, len(given)
        self._bits = np.zeros(4 * ((program.vocabulary.tokenizer.vocab_size + 31) // 32), dtype=np.uint8)
        self._state = program.copied()
        if given and not self._state.consume_tokens(given):
            self._rebuild()

    @property
    def is_accepting(self) -> bool:
        """Whether it may end here."""
        return bool(self._state.is_accepting())

    def mask(self) -> NDArray[np.bool_]:
        """The tokens that may come next, [vocab]; stop tokens where it may end."""
        self._state.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.size)
        if self._state.is_error():
            self._rebuild()
            self._state.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.size)
            self._check()
        return np.unpackbits(self._bits, count=self._program.vocabulary.size, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Advance by a token that the mask allows."""
        self._tokens.append(token)
        if self._state.try_consume_tokens([token]) != 1:
            self._rebuild()

    def rollback(self, num: int) -> None:
        """Take back the last tokens."""
        assert num <= len(self._tokens) - self._num_given
        del self._tokens[len(self._tokens) - num :]
        if num and not self._state.rollback(num):
            self._rebuild()

    def forced(self) -> list[int]:
        """Tokens that must come next."""
        return list(self._state.compute_ff_tokens())

    def _rebuild(self) -> None:
        self._state = self._program.renewed()
        self._state.consume_tokens(self._tokens)
        self._check()

    def _check(self) -> None:
        if self._state.is_error():
            why = " ".join(self._state.get_error().split())[:200]
            raise BadRequestError(f"the answer's grammar became too complex: {why}", hint="simplify its schemas, bounds of lengths first")


class Recent(Generic[K, V]):
    """The values used last, by their keys, from any thread."""

    def __init__(self) -> None:
        self._lock, self._values = Lock(), OrderedDict[K, V]()

    def get(self, key: K) -> V | None:
        """The value, None if there is none."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> V:
        """Keep the value, and return it."""
        with self._lock:
            self._values[key] = value
            while len(self._values) > MOST_PROGRAMS:
                self._values.popitem(last=False)
        return value


class Programs:
    """The programs compiled last, by their grammars. May be used by several threads; each compiles without holding up the others.

    held: programs of calls, by their grammars as first written, with what those do not hold.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.held = Recent[tuple[str, ...], tuple[Program, tuple[str, ...]]]()
        self._programs = Recent[str, Program]()

    def compile(self, lark: str) -> Program:
        """The grammar's program. Raises GrammarError."""
        return self._programs.get(lark) or self._programs.put(lark, Program(self.vocabulary, lark))


def _check_begins(state: LLMatcher) -> None:
    """Raises GrammarError for a grammar under which nothing can be said."""
    is_empty = not any(state.compute_bitmask()) or (state.is_stopped() and not state.is_accepting())
    if is_empty or state.is_error():
        raise GrammarError(f"nothing fits it: {state.get_error().strip() or state.stop_reason()}")


def _check(state: LLMatcher) -> None:
    if state.is_error():
        raise GrammarError(state.get_error().strip())
