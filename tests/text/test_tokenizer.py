import functools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.text.conftest import DEMO_MODEL

from forerun.errors import ModelError, UnsupportedError
from forerun.text.lru import ENTRY_TOKENS, LruCache, Owner, num_tokens
from forerun.text.tokenizer import EscapedText, Tokenizer

LIBRARY = tokenizers.Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
TOKENIZER = Tokenizer.load(DEMO_MODEL)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
WORDS = [
    "\n",
    "\n\n",
    " ",
    "def f(x):\n    return x",
    "e\u0301",
    "\u1112\u1161\u11ab",
    "日本",
    "🙂",
    "\x00",
    "<",
    "<think",
    "|im_end|>",
    "can't",
    "12",
]
TEXTS = st.lists(st.one_of(st.sampled_from(SPECIAL), st.sampled_from(WORDS), st.text(max_size=8)), max_size=12).map("".join)
IDS = st.lists(st.integers(0, LIBRARY.get_vocab_size() - 1), max_size=30)
ONE, TWO = Owner("a", "one"), Owner("a", "two")
USER, END, NEWLINES = "<|im_start|>", "<|im_end|>", "\n\n"


@given(TEXTS)
def test_fragments_encode_like_the_whole(text: str) -> None:
    expected = LIBRARY.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.encode(text, tenant="a") == expected
    assert TOKENIZER.encode(text, tenant="a") == expected, "cached fragments differ"


@given(TEXTS, st.integers(0, 80))
def test_the_tokens_of_a_prefix(text: str, end: int) -> None:
    """As many as the text and its prefix, each encoded on its own, have in common. No template ends a message within a special token."""
    assume(not any(text[start : start + len(s)] == s for s in SPECIAL for start in range(max(0, end - len(s) + 1), end)))
    whole, prefix = (LIBRARY.encode(each, add_special_tokens=False).ids for each in (text, text[:end]))
    num_common = next((i for i, (a, b) in enumerate(zip(whole, prefix, strict=False)) if a != b), len(prefix))
    ids, prefix_tokens, _ = TOKENIZER.encode_escaped(EscapedText(text, end, ""), tenant="a")
    assert (list(ids), prefix_tokens) == (whole, num_common)


@given(IDS)
def test_decodes_like_the_library(ids: list[int]) -> None:
    assert TOKENIZER.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=False)


def test_every_token_decodes_like_the_library() -> None:
    ids = range(TOKENIZER.size)
    assert [TOKENIZER.decode([i]) for i in ids] == [LIBRARY.decode([i], skip_special_tokens=False) for i in ids]


def test_an_id_beyond_the_vocabulary_has_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.size]) == ""


def ids_of(*parts: str) -> list[int]:
    """Token ids of parts, each encoded on its own: sampled tokens need not be what the library makes of the whole."""
    return [i for part in parts for i in LIBRARY.encode(part, add_special_tokens=False).ids]


def test_an_echoed_answer_gets_the_sampled_ids(tokenizer: Tokenizer) -> None:
    prompt, sampled = ids_of(f"{USER}user\nhi{END}\n{USER}assistant\n"), ids_of("hel", "lo wo", "rld", END)
    echo = f"{USER}user\nhi{END}\n{USER}assistant\nhello world{END}\n{USER}user\nhello world{END}\n"
    assert tokenizer.encode(echo, tenant="a")[: len(prompt + sampled)] != prompt + sampled, "the case shows nothing"
    tokenizer.cache_sampled(prompt, sampled, tenant="a")
    assert tokenizer.encode(echo, tenant="a") == prompt + sampled + ids_of(f"\n{USER}user\nhello world{END}\n")


def test_the_answer_to_a_prompt_without_special_tokens_is_cached_too(tokenizer: Tokenizer) -> None:
    prompt, sampled = ids_of("one two three four five six"), ids_of(" sev", "en")
    tokenizer.cache_sampled(prompt, sampled, tenant="a")
    assert tokenizer.encode(f"one two three four five six seven{END}", tenant="a") == prompt + sampled + ids_of(END)


def test_an_answer_cut_off_gets_the_sampled_ids(tokenizer: Tokenizer) -> None:
    prompt, sampled = ids_of(f"{USER}assistant\n"), ids_of("hel", "lo")
    tokenizer.cache_sampled(prompt, sampled, tenant="a")
    assert tokenizer.encode(f"{USER}assistant\nhello{END}", tenant="a") == prompt + sampled + ids_of(END)


def test_sampled_ids_return_only_in_their_conversation(tokenizer: Tokenizer) -> None:
    tokenizer.cache_sampled(ids_of(f"{USER}one\n"), ids_of("hel", "lo", END), tenant="a")
    other = f"{USER}two\nhello{END}{USER}one\nhello{END}"
    assert tokenizer.encode(other, tenant="a") == ids_of(other)


def test_a_text_that_diverges_is_encoded_as_usual(tokenizer: Tokenizer) -> None:
    tokenizer.cache_sampled(ids_of(f"{USER}one\n"), ids_of("hel", "lo", END), tenant="a")
    text = f"{USER}one\nhelloworld{END}"
    assert tokenizer.encode(text, tenant="a") == ids_of(text)


def test_another_tenant_gets_no_sampled_ids(tokenizer: Tokenizer) -> None:
    text = f"{USER}one\nhello{END}"
    tokenizer.cache_sampled(ids_of(f"{USER}one\n"), ids_of("hel", "lo", END), tenant="a")
    assert tokenizer.encode(text, tenant="b") == ids_of(text) != tokenizer.encode(text, tenant="a")


@given(
    TEXTS, st.lists(st.one_of(st.integers(0, LIBRARY.get_vocab_size() - 1), st.sampled_from(ids_of("hello", "he", "l", "o"))), max_size=8)
)
def test_whatever_was_sampled_returns(before: str, sampled: list[int]) -> None:
    prompt = TOKENIZER.encode(before + USER, tenant="all")
    answer = TOKENIZER.decode(sampled)
    assume(all(answer.count(text) == sampled.count(LIBRARY.token_to_id(text)) for text in SPECIAL))
    TOKENIZER.cache_sampled(prompt, sampled, tenant="all")
    assert TOKENIZER.encode(before + USER + answer + END, tenant="all") == [*prompt, *sampled, *ids_of(END)]


def test_digest_and_stop_ids(tokenizer: Tokenizer, folder: Path, tmp_path: Path) -> None:
    assert tokenizer.stop_ids == {8185, 8183}
    assert tokenizer.size == 8192
    copy(folder, tmp_path)
    assert Tokenizer.load(tmp_path).digest == tokenizer.digest
    (tmp_path / "generation_config.json").unlink()
    assert Tokenizer.load(tmp_path).stop_ids == {8185}
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["normalizer"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    assert Tokenizer.load(tmp_path).digest != tokenizer.digest


@functools.cache
def with_flag(flag: str) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    definition = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    definition["added_tokens"][3][flag] = True
    library = tokenizers.Tokenizer.from_str(json.dumps(definition))
    return library, Tokenizer(library, digest="", stop_ids=frozenset())


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
@given(TEXTS)
@example("a <think> b<think>c")
def test_tokens_that_depend_on_their_neighbours_are_no_boundaries(flag: str, text: str) -> None:
    library, tokenizer = with_flag(flag)
    assert tokenizer.encode(text, tenant="") == library.encode(text, add_special_tokens=False).ids


def test_a_folder_without_tokenizer_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_damaged_tokenizer_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_another_decoder_is_refused(folder: Path, tmp_path: Path) -> None:
    copy(folder, tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["decoder"] = {"type": "Fuse"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(UnsupportedError, match="Fuse"):
        Tokenizer.load(tmp_path)


def test_no_stop_token_is_an_error(folder: Path, tmp_path: Path) -> None:
    copy(folder, tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match="no token that ends"):
        Tokenizer.load(tmp_path)


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache: LruCache[str, Sequence[int]] = LruCache(2 * ENTRY_TOKENS + 4, num_tokens)
    cache.put("a", [1, 2], ONE)
    cache.put("b", [3, 4], ONE)
    assert list(cache.get("a") or ()) == [1, 2]
    cache.put("c", [5, 6], ONE)
    assert cache.get("b") is None
    assert list(cache.get("a") or ()) == [1, 2]
    for _ in range(100):
        cache.put("a", [7], ONE)
    assert cache.get("c") is not None, "a replaced entry counts once"
    cache.put("d", range(1000), ONE)
    assert [cache.get(key) is None for key in "abcd"] == [False, True, False, True], "what is too large displaces nothing"


def test_an_entry_is_forgotten_with_the_last_of_its_owners() -> None:
    cache: LruCache[str, Sequence[int]] = LruCache(100 * ENTRY_TOKENS, num_tokens)
    for key, owners in {"one": [ONE], "both": [ONE, TWO, ONE], "two": [TWO]}.items():
        for owner in owners:
            cache.put(key, [1, 2], owner)
    cache.put("replaced", [1, 2], TWO)
    cache.put("replaced", [3], ONE)
    cache.forget(ONE.__eq__)
    assert [key for key in ("one", "both", "two", "replaced") if cache.get(key)] == ["both", "two"]
    cache.forget(TWO.__eq__)
    assert cache.get("both") is cache.get("two") is None


def copy(folder: Path, to: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(folder / name, to)
