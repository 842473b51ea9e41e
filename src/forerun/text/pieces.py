"""Cuts a long text at places that no token reaches across, so that the tokenizer's library encodes it piece by piece.

Of what it encodes at once, the library copies and frees some hundred bytes a token while no other thread can run. Knows texts, and tokens
as bytes; knows no library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

PIECE_CHARS = 1 << 18
MOST_PIECE_CHARS = 1 << 22  # of a piece with no place to cut
PART_CHARS = 64  # that a text counts for besides its length
# Before a space between two letters, after the only line break between two lines, and between a digit and a letter.
_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=\S\n)(?=\w)|(?<=[0-9])(?=[A-Za-z])")
_ACROSS = re.compile(rb"[A-Za-z] [A-Za-z]|\n\S|[0-9][A-Za-z]")
SAMPLES = ("word word", "word\nword", "word;\n9", "字\n字", "12345word")


def no_token_spans_a_cut(tokens: Iterable[bytes]) -> bool:
    """Whether none of a vocabulary's tokens reaches across a place where `batches` cuts."""
    return not any(map(_ACROSS.search, tokens))


def halves(sample: str) -> tuple[str, str]:
    """The two sides of the cut in one of SAMPLES."""
    cut = _CUT.search(sample)
    assert cut is not None
    return sample[: cut.start()], sample[cut.start() :]


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in order, cut into pieces of little more than PIECE_CHARS where that is possible, in batches of about that size."""
    batch, num_chars = list[str](), 0
    for piece in chain.from_iterable(map(_pieces, texts)):
        batch.append(piece)
        num_chars += len(piece) + PART_CHARS
        if num_chars > PIECE_CHARS:
            yield batch
            batch, num_chars = [], 0
    yield batch


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while cut := _CUT.search(text, start + PIECE_CHARS):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
