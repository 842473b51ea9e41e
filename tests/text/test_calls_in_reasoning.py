"""Calls of models that did not close their reasoning, in all formats and however the answer is cut."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.conftest import no_logprobs
from tests.text.test_answer_parser import OPEN, TOOLS, WAYS, WRITERS, check, hermes, joined, parse, qwen

from forerun.text.answer_parser import AnswerFormat, AnswerParser
from forerun.text.calls.call_format import CallFormat
from forerun.text.calls.json_calls import Hermes, Llama
from forerun.text.calls.tagged import QWEN
from forerun.text.prompt import call_id
from forerun.text.reasoning import THINK
from forerun.values import CallStart, Piece, Reasoning

each_format = pytest.mark.parametrize("calls", WAYS, ids=lambda calls: f"{type(calls).__name__} {calls.opens[0]}")


def answered(calls: CallFormat, answer: str, *, opens: bool = True) -> dict[str, Any]:
    """The message, which must be the same in one piece and character by character."""
    pieces = parse(calls, [answer], opens=opens)
    check(pieces)
    message = joined(pieces)
    assert joined(parse(calls, list(answer), opens=opens)) == message
    return message


def reasoned(text: str, content: str = "") -> dict[str, Any]:
    return {"reasoning": text, "content": content, "calls": [], "ends": []}


@each_format
@pytest.mark.parametrize("end", ["", "\n", "</think>", "\n</think>\n\n", " \n </think> \n"])
def test_calls_that_end_the_answer_are_calls(calls: CallFormat, end: str) -> None:
    call = WRITERS[calls]("read", path="a.py")
    one = {"reasoning": "I should look.\n", "content": "", "calls": [("read", '{"path": "a.py"}')], "ends": [True]}
    assert answered(calls, f"I should look.\n{call}{end}") == one
    assert answered(calls, f"<think>\nI should look.\n{call}{end}", opens=False) == one
    assert answered(calls, f"I should look.\n{call}\n{call}{end}") == one | {"calls": one["calls"] * 2, "ends": [True, True]}
    assert answered(calls, f"{call}{end}") == one | {"reasoning": ""}


@each_format
@pytest.mark.parametrize("more", ["\nBut no", "\n```\n", "'", "</think>\n</think>", "<think>", "</thin"])
def test_calls_with_more_behind_them_are_reasoning(calls: CallFormat, more: str) -> None:
    call = WRITERS[calls]("read", path="a.py")
    before, tag, content = f"So: {call}{more}".partition("</think>")
    assert answered(calls, f"So: {call}{more}") == reasoned(before, content.lstrip("\n") if tag else "")
    assert answered(calls, f"So: {call}\nthen {call}{more}")["calls"] == []


@each_format
def test_content_behind_the_closing_tag_makes_them_reasoning(calls: CallFormat) -> None:
    call = WRITERS[calls]("read", path="a.py")
    assert answered(calls, f"So: {call}\n</think>\n\nDone.") == reasoned(f"So: {call}\n", "Done.")
    twice = answered(calls, f"So: {call}</think>\n\n{WRITERS[calls]('read', path='b.py')}")
    assert (twice["reasoning"], twice["calls"]) == (f"So: {call}", [("read", '{"path": "b.py"}')])


@each_format
def test_only_whole_calls_of_declared_tools_count(calls: CallFormat) -> None:
    unknown, call = WRITERS[calls]("nope", path="a.py"), WRITERS[calls]("read", path="a.py")
    assert answered(calls, f"So: {unknown}") == reasoned(f"So: {unknown}")
    assert answered(calls, f"So: {call}\n{unknown}") == reasoned(f"So: {call}\n{unknown}")
    half = call[: call.index("a.py") + 2]
    assert answered(calls, f"So: {half}") == reasoned(f"So: {half}")
    assert answered(calls, f"So: {half}\n</think>\n\nDone.") == reasoned(f"So: {half}\n", "Done.")
    later = answered(calls, f"So: {unknown}, {call}")
    assert (later["reasoning"], later["calls"]) == (f"So: {unknown}, ", [("read", '{"path": "a.py"}')])


@each_format
def test_a_closing_tag_in_an_argument_is_text(calls: CallFormat) -> None:
    call = WRITERS[calls]("read", path="the </think> tag")
    assert answered(calls, f"So: {call}")["calls"] == [("read", '{"path": "the </think> tag"}')]


def test_a_call_given_up_for_another_is_reasoning() -> None:
    message = answered(QWEN, f"So: {OPEN}</think>\n\nNow.\n{qwen('read', path='b')}")
    assert message == {"reasoning": f"So: {OPEN}", "content": "Now.", "calls": [("read", '{"path": "b"}')], "ends": [True]}


def test_missing_tags_are_missing_in_reasoning_too() -> None:
    assert answered(QWEN, f"So: {OPEN}\n</tool_call>\n</think>\n")["calls"] == [("read", '{"path": "a"}')]
    assert answered(Hermes(), f"So: {hermes('read', path='a').removesuffix('</tool_call>')}")["calls"] == [("read", '{"path": "a"}')]
    assert answered(QWEN, f"So: {OPEN}\n</function>\n</tool_call>\nNo.") == reasoned(f"So: {OPEN}\n</function>\n</tool_call>\nNo.")


def test_without_tools_calls_are_reasoning() -> None:
    call = qwen("read", path="a.py")
    assert joined(parse(QWEN, [f"So: {call}"], opens=True, tools=type(TOOLS)(()))) == reasoned(f"So: {call}")


def parser(calls: CallFormat) -> AnswerParser:
    return AnswerParser(AnswerFormat(THINK, calls), TOOLS, partial(call_id, "job"), opens_reasoning=True, logprobs_of=no_logprobs)


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))


@each_format
def test_only_what_may_be_calls_is_held_back(calls: CallFormat) -> None:
    answer, call = parser(calls), WRITERS[calls]("read", path="a.py")
    assert text_of(answer.push("I see. ")) == "I see. "
    assert answer.push(call) == []
    assert answer.push(" \n") == []
    assert text_of(answer.push("No")) == f"{call} \nNo"
    assert answer.push(call) == []
    assert any(isinstance(piece, CallStart) for piece in answer.flush())
    assert answer.reasoning_chars == len(f"I see. {call} \nNo")
    if not isinstance(calls, Llama):
        mention = f"The tag {calls.opens[0]} opens a call"
        assert text_of(parser(calls).push(mention)) == mention


def definition(scraps: list[str]) -> tuple[list[str], int]:
    """The reasoning's scraps, and how many calls are read from reasoning that was left open, for a whole answer of these scraps."""
    text = "".join({"call": "C", "</think>": "T"}.get(scrap, scrap) for scrap in scraps).rstrip("\n")
    inside = text.removesuffix("T").rstrip("\n")
    if "T" not in inside and inside.endswith("C"):
        reasoning = inside.rstrip("\nC")
        blank = len(inside[len(reasoning) :]) - len(inside[len(reasoning) :].lstrip("\n"))
        return scraps[: len(reasoning) + blank], inside[len(reasoning) :].count("C")
    return scraps[: scraps.index("</think>")] if "</think>" in scraps else scraps, 0


@given(st.lists(st.sampled_from(["a", "\n", "</think>", "call", "call"]), max_size=7), st.data(), st.sampled_from(WAYS))
def test_any_chunking_is_decided_as_defined(scraps: list[str], data: Any, calls: CallFormat) -> None:
    call = WRITERS[calls]("read", path="p")
    answer = "".join(call if scrap == "call" else scrap for scrap in scraps)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    message = joined(parse(calls, [answer[i:j] for i, j in zip([0, *cuts], [*cuts, len(answer)], strict=True)], opens=True))
    reasoning, num_calls = definition(scraps)
    assert message["reasoning"] == "".join(call if scrap == "call" else scrap for scrap in reasoning).lstrip("\n")
    assert not num_calls or (len(message["calls"]), message["content"]) == (num_calls, "")
