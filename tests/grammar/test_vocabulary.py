"""The tokens that grammars choose from, of a checkpoint folder and of a GGUF file; and where a text occurs in them."""

from __future__ import annotations

from pathlib import Path

from tests import gguf
from tests.grammar.answers import GRAMMARS, TOKENIZER

from forerun.grammar.vocabulary import Vocabulary
from forerun.text.tokenizer import Tokenizer


def test_a_gguf_files_tokens_are_those_of_the_folder(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(gguf.write(tmp_path / "model.gguf"))
    ours, theirs = Vocabulary(tokenizer, tokenizer.size), GRAMMARS.vocabulary
    assert ours.specials == theirs.specials
    assert list(ours.tokenizer.eos_tokens) == sorted(tokenizer.stop_ids)


def test_tokens_that_complete_a_text_are_found() -> None:
    vocabulary, text = GRAMMARS.vocabulary, b"</x>"
    for before in (b"", b"a <", b"a </", b"</x", b"<</x"):
        found = {token for each in vocabulary.occurrences(text, before) for token in (*each.ending.tolist(), *each.crossing)}
        tokens = {token: TOKENIZER.token_bytes(token) for token in range(TOKENIZER.size)}
        assert found == {token for token, each in tokens.items() if text in (before[-3:] + each)}


def test_the_rest_of_a_token_that_crosses_a_texts_end_is_known() -> None:
    for each in GRAMMARS.vocabulary.occurrences(b"</x>", b"</x"):
        for token, rest in each.crossing.items():
            assert TOKENIZER.token_bytes(token) == b"</x>"[each.num_before :] + rest
