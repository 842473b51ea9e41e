from hypothesis import given
from hypothesis import strategies as st

from forerun.text.calls.tools import Tools
from forerun.text.reasoning import CHANNEL, THINK, ReasoningSplitter, ReasoningTags


def answers(tags: ReasoningTags) -> st.SearchStrategy[tuple[ReasoningTags, str, list[int]]]:
    """Answers made of these tags and pieces of them, and where they are cut."""
    parts = st.sampled_from([*tags, tags.open[:-1], tags.close[:-1], "<", "\n", "\n\n", "a", "b "])
    return st.tuples(st.just(tags), st.lists(parts, max_size=12).map("".join), st.lists(st.integers(0, 60), max_size=8))


def whole(text: str, tags: ReasoningTags, opens: bool) -> tuple[str, str]:
    """The definition, for a whole answer: (reasoning, content)."""
    if not opens and not text.startswith(tags.open):
        return "", text
    inside = text if opens else text.removeprefix(tags.open)
    reasoning, _, content = inside.partition(tags.close)
    return reasoning.lstrip("\n"), content.lstrip("\n")


@given(st.one_of(answers(THINK), answers(CHANNEL)), st.booleans())
def test_any_chunking_splits_like_the_whole(answer: tuple[ReasoningTags, str, list[int]], opens: bool) -> None:
    tags, text, cuts = answer
    splitter, positions = (
        ReasoningSplitter(tags, opens_reasoning=opens, calls=None, tools=Tools(())),
        sorted(cut for cut in cuts if cut <= len(text)),
    )
    chunks = [text[start:stop] for start, stop in zip([0, *positions], [*positions, len(text)], strict=True)]
    splits = [split for chunk in chunks for split in splitter.push(chunk)] + splitter.flush(is_cut=False)
    parts = {part: "".join(text for p, text in splits if p == part) for part in ("reasoning", "content")}
    assert (parts["reasoning"], parts["content"]) == whole(text, tags, opens)
    assert all(text for _, text in splits)
    end = text.find(tags.close, 0 if opens else len(tags.open))
    reasoning_chars = len(text) if end < 0 else end + len(tags.close)
    assert splitter.reasoning_chars == (reasoning_chars if opens or text.startswith(tags.open) else 0)
    assert [part for part, _ in splits] == sorted((part for part, _ in splits), reverse=True), "reasoning after content"


def test_only_a_possible_tag_is_held_back() -> None:
    splitter = ReasoningSplitter(THINK, opens_reasoning=True, calls=None, tools=Tools(()))
    assert splitter.push("I see <") == [("reasoning", "I see ")]
    assert splitter.push("b") == [("reasoning", "<b")]
    assert splitter.push(" </think>\n\nYes") == [("reasoning", " "), ("content", "Yes")]
    assert splitter.push(" </think>") == [("content", " </think>")]


def test_an_answer_without_reasoning_is_content_at_once() -> None:
    assert ReasoningSplitter(THINK, opens_reasoning=False, calls=None, tools=Tools(())).push("\nYes <think>") == [
        ("content", "\nYes <think>")
    ]
