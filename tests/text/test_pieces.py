"""A long text is encoded in pieces, and its tokens are those of the whole."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.talking import tokenizer

from forerun.errors import BadRequestError
from forerun.models.load import DEMO_MODEL
from forerun.text import pieces
from forerun.text.tokenizer import Tokenizer

LIBRARY = tokenizers.Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
PARTS = st.sampled_from(["word", " word", " ", "\n", "\n\n", "\r\n", "\t", ";", "'s", "9", "42", "ü", "e\u0301", "\u0301", "字", "_", "😀"])


def cut(text: str, monkeypatch: pytest.MonkeyPatch, num_chars: int) -> list[str]:
    monkeypatch.setattr(pieces, "PIECE_CHARS", num_chars)
    return [piece for batch in pieces.batches([text]) for piece in batch]


@given(st.lists(PARTS, max_size=40).map("".join))
def test_the_tokens_of_the_pieces_are_those_of_the_text(text: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        parts = cut(text, monkeypatch, 1)
    assert "".join(parts) == text
    encoded = [id for part in parts for id in LIBRARY.encode(part, add_special_tokens=False).ids]
    assert encoded == LIBRARY.encode(text, add_special_tokens=False).ids


def test_a_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut("one two three\nfour\n\nfive", monkeypatch, 1) == ["one", " two", " three\n", "four\n\nfive"]
    assert cut("a1b22c", monkeypatch, 1) == ["a1", "b22", "c"]
    assert cut("one two three four", monkeypatch, 6) == ["one two", " three", " four"]


@pytest.mark.parametrize("char", ["a", " ", "\n", "7", "字"])
def test_a_text_that_cannot_be_cut_is_refused(char: str) -> None:
    """The library would stop all threads for seconds, and gives up on 20 million spaces."""
    with pytest.raises(BadRequestError, match="5,000,000 characters without a space between words"):
        tokenizer().encode(char * 5_000_000, tenant="")
    assert tokenizer().encode(char * 1_000_000, tenant="")


def test_many_short_texts_are_batches_of_bounded_number() -> None:
    lengths = [len(batch) for batch in pieces.batches(["a"] * 10_000)]
    assert sum(lengths) == 10_000
    assert max(lengths) <= pieces.PIECE_CHARS // pieces.PART_CHARS


@pytest.mark.parametrize("token", [b"in the", b"\nword", b"\n\xe5", b"0x1f"])
def test_a_vocabulary_with_a_token_across_a_cut_is_not_cut(token: bytes) -> None:
    assert pieces.no_token_spans_a_cut([b" the", b"\n\n", b";\n"])
    assert not pieces.no_token_spans_a_cut([b"a", token])


def test_a_library_that_encodes_the_start_of_a_text_otherwise_is_not_cut() -> None:
    library = tokenizers.Tokenizer.from_str(LIBRARY.to_str())
    whole = Tokenizer(library, digest="", stop_ids=frozenset())
    library.normalizer = tokenizers.normalizers.Prepend("_")
    prefixed = Tokenizer(library, digest="", stop_ids=frozenset())
    assert (whole._can_cut, prefixed._can_cut) == (True, False)


def test_a_text_of_several_pieces_and_escaped_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "one two three four\nfive " * 5
    expected = tokenizer().encode(text, tenant="whole")
    monkeypatch.setattr(pieces, "PIECE_CHARS", 8)
    assert tokenizer().encode(text, tenant="pieces") == expected
