import time

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.conftest import DEMO_MODEL

from forerun.text.answer import Answer
from forerun.text.partial_match import first_match, partial_overlap
from forerun.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(DEMO_MODEL)
BYTES = [token for token in range(TOKENIZER.size) if len(TOKENIZER.token_bytes(token)) == 1]
FEW = [token for token in BYTES if TOKENIZER.token_bytes(token) in [bytes([byte]) for byte in "aabé🙂".encode()]]
WORDS = TOKENIZER.encode("ab aab ba é🙂", tenant="")
TOKENS = st.one_of(
    st.lists(st.sampled_from(FEW), max_size=20),
    st.lists(
        st.one_of(st.sampled_from(FEW), st.sampled_from(WORDS), st.sampled_from(BYTES), st.integers(0, TOKENIZER.size + 3)), max_size=20
    ),
)
STOPS = st.lists(st.text(alphabet="abé\ufffd", min_size=1, max_size=5), max_size=4).map(tuple)


def cut(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """The definition, independently: the stop string that completes first (the longest of several) ends the text."""
    for end in range(1, len(text) + 1):
        ending = [len(s) for s in stop if text[:end].endswith(s)]
        if ending:
            return text[: end - max(ending)], True
    return text, False


def write(tokens: list[int], stop: tuple[str, ...]) -> tuple[str, Answer]:
    """Push as the engine does: until a stop string is complete."""
    answer = Answer(TOKENIZER, stop, "")
    text = ""
    for token in tokens:
        text += answer.push(token)
        if answer.is_stopped:
            return text, answer
    return text + answer.flush(), answer


@settings(max_examples=400)
@given(TOKENS, STOPS)
def test_text_is_the_whole_cut_at_the_stop_string(tokens: list[int], stop: tuple[str, ...]) -> None:
    text, answer = write(tokens, stop)
    assert (text, answer.is_stopped) == cut(TOKENIZER.decode(tokens), stop)


@settings(max_examples=400)
@given(TOKENS, STOPS)
def test_emitted_tokens_lie_within_the_text(tokens: list[int], stop: tuple[str, ...]) -> None:
    text, answer = write(tokens, stop)
    ends = [len(TOKENIZER.decode(tokens[:n])) for n in range(1, len(tokens) + 1)]
    assert answer.emitted_tokens == sum(end <= len(text) for end in ends)


@given(TOKENS, STOPS)
def test_no_text_is_held_that_cannot_belong_to_a_stop_string(tokens: list[int], stop: tuple[str, ...]) -> None:
    answer = Answer(TOKENIZER, stop, "")
    text = ""
    for n, token in enumerate(tokens, start=1):
        text += answer.push(token)
        if answer.is_stopped:
            return
        whole = TOKENIZER.decode(tokens[:n])
        longest = max((k for s in stop for k in range(len(s)) if whole.rstrip("\ufffd").endswith(s[:k])), default=0)
        assert len(text) >= len(whole.rstrip("\ufffd")) - longest


@settings(max_examples=500)
@given(st.text(alphabet="ab", max_size=12), st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=4))
def test_stop_strings_inside_one_another_are_found(text: str, stop: list[str]) -> None:
    for n in range(1, len(text) + 1):
        assert len(first_match(text[:n], stop, n - 1)) == max((len(s) for s in stop if text[:n].endswith(s)), default=0)
        assert partial_overlap(text[:n], stop) == max((k for s in stop for k in range(len(s)) if text[:n].endswith(s[:k])), default=0)


def test_a_character_in_several_tokens_appears_whole() -> None:
    tokens = [next(t for t in BYTES if TOKENIZER.token_bytes(t) == bytes([byte])) for byte in "🙂".encode()]
    answer = Answer(TOKENIZER, (), "")
    assert [answer.push(token) for token in tokens] == ["", "", "", "🙂"]
    assert answer.emitted_tokens == 4


def test_an_unfinished_character_becomes_one_replacement_character() -> None:
    tokens = [next(t for t in BYTES if TOKENIZER.token_bytes(t) == bytes([byte])) for byte in "🙂".encode()[:3]]
    answer = Answer(TOKENIZER, (), "")
    assert "".join(map(answer.push, tokens)) + answer.flush() == "\ufffd"


def test_a_long_answer_costs_linear_time() -> None:
    def seconds(num_tokens: int) -> float:
        answer = Answer(TOKENIZER, ("never seen", "aaaaaaaab"), "")
        start = time.process_time()
        for _ in range(num_tokens):
            answer.push(WORDS[0])
        return time.process_time() - start

    seconds(1000)
    assert seconds(40_000) < 40 * seconds(4_000)


@given(st.lists(st.sampled_from(["</think>", "</", "think>", "\n", "a", "b", " "]), max_size=12))
def test_reasoning_holds_no_stop_string(parts: list[str]) -> None:
    text = "".join(parts)
    reasoning, tag, content = text.partition("</think>")
    breaks = content[: len(content) - len(content.lstrip("\n"))]
    answer, out = Answer(TOKENIZER, ("\n", "a b", "think>"), "</think>"), ""
    for token in TOKENIZER.encode(text, tenant=""):
        out += answer.push(token)
        if answer.is_stopped:
            break
    else:
        out += answer.flush()
    shown, stopped = cut(content[len(breaks) :], ("\n", "a b", "think>"))
    assert (out, answer.is_stopped) == (reasoning + tag + breaks + shown, stopped)
