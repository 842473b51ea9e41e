"""One answer: however it ends, its text and tokens are those of plain decoding, and the stored state continues like that of a prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.fake_family import FakeFamily, scattered
from tests.running import differing, greedy, logits, read
from tests.talking import SEEDED, cold, generation, tokenizer

from forerun.decode.generate import Generation
from forerun.state.cache import Cache
from forerun.values import GREEDY, Finish, Sampling

FAMILIES: dict[str, Any] = {  # bad drafts, mixed ones, and none that is wrong
    "tiny": tiny.family(),
    "fake": FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB),
    "perfect": FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB, wrong_every=1 << 20),
}
PROMPT = tiny.words("generate", 30)
NUM = 40
DEPTHS = [0, 1, 2, 3, 7]


def answered(name: str = "tiny", **options: Any) -> tuple[Generation, Cache[Any], str]:
    """A whole answer, its cache, and its text."""
    cache = read(FAMILIES[name], PROMPT)
    answer = generation(FAMILIES[name], cache, PROMPT, **options)
    return answer, cache, "".join(answer)


@cache
def plain(name: str) -> tuple[int, ...]:
    """The model's first NUM tokens if nothing ends the answer."""
    return tuple(answered(name, max_tokens=NUM)[0].tokens)


@dataclass(frozen=True, slots=True)
class Expected:
    tokens: tuple[int, ...]
    text: str
    finish: Finish
    num_shown: int


def expected(name: str, max_tokens: int, stop_ids: Sequence[int], stop: Sequence[str]) -> Expected:
    """From ever longer prefixes of the plain answer."""
    for n in range(1, max_tokens + 1):
        tokens = plain(name)[:n]
        if tokens[-1] in stop_ids:
            return Expected(tokens[:-1], tokenizer().decode(tokens[:-1]), "stop", n - 1)
        text = tokenizer().decode(tokens)
        if found := [text.index(s) for s in stop if s in text]:
            return Expected(tokens, text[: min(found)], "stop", fitting(name, min(found)))
    return Expected(plain(name)[:max_tokens], tokenizer().decode(plain(name)[:max_tokens]), "length", max_tokens)


def fitting(name: str, characters: int) -> int:
    """How many tokens of the plain answer have all their text within its first characters."""
    whole = tokenizer().decode(plain(name))
    ends = [n for n in range(NUM + 1) if whole.startswith(tokenizer().decode(plain(name)[:n])[: characters + 1])]
    return max(n for n in ends if len(tokenizer().decode(plain(name)[:n])) <= characters)


def pieces_of_the_answer(name: str) -> list[str]:
    """Strings that occur in the plain answer, of one to four characters that no token splits."""
    text = tokenizer().decode(plain(name))
    found = {text[i : i + n] for i in range(len(text)) for n in (1, 2, 4)}
    return sorted(piece for piece in found if piece.isascii())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    depth=st.sampled_from(DEPTHS),
    max_tokens=st.integers(1, NUM),
    stop_ids=st.lists(st.sampled_from(range(NUM)), max_size=2),
    stop=st.lists(st.integers(0, 1 << 20), max_size=2),
)
def test_an_answer_ends_where_it_should_and_can_be_continued(
    name: str, depth: int, max_tokens: int, stop_ids: list[int], stop: list[int]
) -> None:
    ids, pieces = [plain(name)[i] for i in stop_ids if i > 3], pieces_of_the_answer(name)
    strings = tuple(pieces[i % len(pieces)] for i in stop)
    answer, state, text = answered(name, depth=depth, max_tokens=max_tokens, stop_ids=frozenset(ids), stop=strings)
    wanted = expected(name, max_tokens, ids, strings)
    assert (tuple(answer.tokens), text, answer.finish) == (wanted.tokens, wanted.text, wanted.finish)
    assert (answer.num_shown, answer.num_sampled) == (
        wanted.num_shown,
        len(wanted.tokens) + (wanted.finish == "stop" and not stopped(answer)),
    )
    check_stored(name, answer, state, depth)


def stopped(answer: Generation) -> bool:
    """Whether a stop string ended it."""
    return answer.answer.is_stopped


def check_stored(name: str, answer: Generation, state: Cache[Any], depth: int) -> None:
    """The stored tokens are a prefix of those shown, close to their end, and the state is that of their prefill."""
    stored = answer.store()
    assert stored == [*PROMPT, *answer.tokens][: len(stored)]
    lost = len(PROMPT) + answer.num_shown - len(stored)
    assert 0 <= lost <= (depth + 2 if stopped(answer) else answer.finish != "stop")
    family, again = FAMILIES[name], read(FAMILIES[name], stored)
    assert differing(state, again) == []
    assert mx.array_equal(logits(family, state), logits(family, again))
    assert greedy(family, state, 3) == greedy(family, again, 3)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
def test_the_caller_may_stop_at_any_piece(name: str, depth: int, pieces: int) -> None:
    state = read(FAMILIES[name], PROMPT)
    answer = generation(FAMILIES[name], state, PROMPT, depth=depth, max_tokens=NUM)
    for _, _piece in zip(range(pieces), answer, strict=False):
        pass
    assert tuple(answer.tokens) == plain(name)[: len(answer.tokens)]
    assert len(answer.tokens) >= pieces
    assert answer.finish is None
    check_stored(name, answer, state, depth)


def test_the_first_token_may_end_it() -> None:
    answer, state, text = answered(stop_ids=frozenset(plain("tiny")[:1]))
    assert (answer.tokens, answer.finish, answer.num_sampled, text) == ([], "stop", 1, "")
    assert answer.store() == PROMPT
    assert differing(state, cold(PROMPT)) == []


def test_a_stop_string_after_many_tokens_without_draft_rows() -> None:
    """As many as one batch, one less and one more: the stop string's tokens are emitted but never become state."""
    long = tuple(answered(max_tokens=70)[0].tokens)
    for num in range(60, 70):
        stop = tokenizer().decode(long[num - 3 : num])
        if stop.isascii() and stop not in tokenizer().decode(long[: num - 1]):
            answer, state, _ = answered(max_tokens=70, stop=(stop,))
            assert len(answer.tokens) == num
            check_stored("tiny", answer, state, 0)


def test_a_partial_stop_string_is_shown_at_the_end() -> None:
    text = answered(max_tokens=12)[2]
    assert answered(max_tokens=12, stop=(text[-3:] + "never",))[2] == text


@pytest.mark.parametrize("num_hidden", [1, 2, 3])
def test_nothing_is_lost_if_the_stop_string_comes_in_one_round(num_hidden: int) -> None:
    stop = tokenizer().decode(plain("perfect")[:5])[5 - num_hidden :]
    assert (len(stop), stop.isascii()) == (num_hidden, True)
    answer, state, _ = answered("perfect", depth=7, stop=(stop,))
    assert (answer.num_shown, len(answer.tokens), answer.draft_stats.rounds) == (5 - num_hidden, 5, 1)
    assert answer.store() == [*PROMPT, *plain("perfect")[: 5 - num_hidden]]
    assert differing(state, read(FAMILIES["perfect"], [*PROMPT, *plain("perfect")[: 5 - num_hidden]])) == []


def test_a_bias_decides() -> None:
    assert answered(sampling=replace(GREEDY, logit_bias={17: 100.0}), max_tokens=6)[0].tokens == [17] * 6
    kept = {17, 40}
    biased = replace(SEEDED, logit_bias={token: -100.0 for token in range(tiny.VOCAB) if token not in kept})
    assert set(answered(sampling=biased, max_tokens=12)[0].tokens) == kept


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("penalised", [replace(GREEDY, presence_penalty=100.0), replace(GREEDY, frequency_penalty=100.0)])
def test_penalties_prevent_repeated_tokens(depth: int, penalised: Sampling) -> None:
    tokens = answered(sampling=penalised, max_tokens=NUM, depth=depth)[0].tokens
    assert len(set(tokens)) == NUM > len(set(answered(sampling=GREEDY, max_tokens=NUM)[0].tokens))
    assert set(tokens) & set(PROMPT)  # the prompt is not counted


@pytest.mark.parametrize("depth", [0, 3])
def test_the_repetition_penalty_counts_the_prompt_too(depth: int) -> None:
    tokens = answered(sampling=replace(GREEDY, repetition_penalty=1e6), max_tokens=20, depth=depth)[0].tokens
    assert len(set(tokens)) == 20
    assert not set(tokens) & set(PROMPT)
