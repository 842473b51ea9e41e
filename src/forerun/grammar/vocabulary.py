"""The tokens that grammars choose from: the tokenizer as llguidance takes it, and where texts occur in tokens. Knows no grammar."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from forerun.text.tokenizer import Tokenizer

Ids = NDArray[np.intp]


class Occurrence(NamedTuple):
    """Tokens that complete a text of which the first `num_before` bytes stand before them. ending: those that end with it; crossing: those
    that go on, with the bytes behind it.
    """

    num_before: int
    ending: Ids
    crossing: Mapping[int, bytes]


class Vocabulary:
    """A checkpoint's tokens. size: that of the model's output, which may be larger than the tokenizer; its other rows are never allowed.
    real: the rows with a token, [size]. specials: texts of
    special tokens.

    Building it takes about a second per 100,000 tokens: not for the thread that decodes.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.size = size
        self.stops = np.array(sorted(tokenizer.stop_ids), dtype=np.intp)
        self.stop_ids = tokenizer.stop_ids
        self.tokenizer = LLTokenizer(tokenizer.definition, n_vocab=max(size, tokenizer.size), eos_token=sorted(tokenizer.stop_ids))
        self._bytes = [tokenizer.token_bytes(token) for token in range(size)]
        self.real = np.array([bool(each) for each in self._bytes], dtype=np.bool_)
        special = (token for token in range(size) if self.real[token] and self.is_special(token))
        self.specials = frozenset(self._bytes[token].decode(errors="replace") for token in special)
        self._encode = tokenizer.encode_alone
        self._occurrences: dict[bytes, list[Occurrence]] = {}

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, none for a row without one."""
        return self._bytes[token]

    def encode(self, text: str) -> tuple[int, ...]:
        """The text's tokens; special tokens are recognised."""
        return tuple(self._encode(text))

    def split(self, text: bytes) -> list[int]:
        """Tokens of these bytes, which need not be whole characters; no special tokens."""
        return list(self.tokenizer.tokenize_bytes(text))

    def is_special(self, token: int) -> bool:
        """Whether llguidance takes it for a special one: no text or string of a grammar can hold it."""
        return bool(self.tokenizer.is_special_token(token))

    def occurrences(self, text: bytes, before: bytes) -> list[Occurrence]:
        """How the next token may complete the text, after these bytes."""
        known = self._occurrences.get(text)
        if known is None:
            known = self._occurrences[text] = [self._anywhere(text), *(self._after(text, num) for num in range(1, len(text)))]
        return [each for each in known if before.endswith(text[: each.num_before])]

    def _anywhere(self, text: bytes) -> Occurrence:
        found = {token: each for token, each in enumerate(self._bytes) if text in each}
        return _occurrence(0, {token: each[each.index(text) + len(text) :] for token, each in found.items()})

    def _after(self, text: bytes, num_before: int) -> Occurrence:
        rest, (texts, ids) = text[num_before:], self._sorted
        start = bisect_left(texts, rest)
        stop = bisect_left(texts, rest[:-1] + bytes([rest[-1] + 1]), lo=start)
        return _occurrence(num_before, {ids[i]: texts[i][len(rest) :] for i in range(start, stop)})

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[int]]:
        """The tokens in the order of their bytes."""
        ids = sorted(range(self.size), key=self._bytes.__getitem__)
        return [self._bytes[token] for token in ids], ids


def _occurrence(num_before: int, rests: Mapping[int, bytes]) -> Occurrence:
    ending = np.array([token for token, rest in rests.items() if not rest], dtype=np.intp)
    return Occurrence(num_before, ending, {token: rest for token, rest in rests.items() if rest})
