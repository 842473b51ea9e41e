from hypothesis import given
from hypothesis import strategies as st

from forerun.text.reasoning import THINK, Splitter

PARTS = st.sampled_from(["<think>", "</think>", "</", "think>", "<", "\n", "\n\n", "a", "b ", "</thin", "<think"])
ANSWERS = st.lists(st.lists(PARTS, max_size=4).map("".join), max_size=10)


def whole(text: str, opens: bool) -> tuple[str, str]:
    """The law, for an answer that is here in full: (reasoning, content)."""
    if not opens and not text.startswith("<think>"):
        return "", text
    inside = text if opens else text.removeprefix("<think>")
    reasoning, _, content = inside.partition("</think>")
    return reasoning.lstrip("\n"), content.lstrip("\n")


@given(ANSWERS, st.booleans())
def test_any_chunking_splits_like_the_whole(chunks: list[str], opens: bool) -> None:
    splitter = Splitter(THINK, opens_reasoning=opens)
    pieces = [piece for chunk in chunks for piece in splitter.push(chunk)] + splitter.flush()
    parts = {part: "".join(text for p, text in pieces if p == part) for part in ("reasoning", "content")}
    assert (parts["reasoning"], parts["content"]) == whole("".join(chunks), opens)
    assert all(text for _, text in pieces)
    begins = opens or "".join(chunks).startswith("<think>")
    assert (
        splitter.reasoning_chars == ("".join(chunks) + "</think>").index("</think>") + len("</think>" * ("</think>" in "".join(chunks)))
        if begins
        else splitter.reasoning_chars == 0
    )
    assert [part for part, _ in pieces] == sorted((part for part, _ in pieces), reverse=True), "reasoning after content"


def test_only_a_possible_tag_is_held_back() -> None:
    splitter = Splitter(THINK, opens_reasoning=True)
    assert splitter.push("I see <") == [("reasoning", "I see ")]
    assert splitter.push("b") == [("reasoning", "<b")]
    assert splitter.push(" </think>\n\nYes") == [("reasoning", " "), ("content", "Yes")]
    assert splitter.push(" </think>") == [("content", " </think>")]


def test_an_answer_without_reasoning_is_content_at_once() -> None:
    assert Splitter(THINK, opens_reasoning=False).push("\nYes <think>") == [("content", "\nYes <think>")]
