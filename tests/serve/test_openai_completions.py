import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types import Completion
from tests.serve.engine_double import DONE, INFO, SUGGESTED
from tests.serve.refusals import refusals

from forerun.serve.openai_completions import Asked, Streamed, Whole, parse
from forerun.values import Content, Event, Plain, Raw, Reading

ANSWER: Sequence[Event] = (Reading(4, 7, 3, None), Content("a, "), Content("b):"), DONE)


def asked(**body: Any) -> Asked:
    return parse({"prompt": "def add("} | body, INFO, id="cmpl-1", tenant="ann")


refusal = refusals(asked)


def whole(**body: Any) -> dict[str, Any]:
    answer = Whole(asked(**body), INFO, created_unix_s=5)
    for event in ANSWER:
        answer.take(event)
    return answer.body()


def streamed(**body: Any) -> list[dict[str, Any]]:
    stream = Streamed(asked(**body), INFO, created_unix_s=5)
    text = b"".join(frame for event in ANSWER for frame in stream.frames(event)).decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_what_is_left_out_is_the_models_default_but_the_length() -> None:
    job = asked().job
    assert (job.prompt, job.sampling, job.max_tokens, job.stop) == (Plain("def add("), SUGGESTED, 16, ())
    assert (asked(stop="x", max_tokens=5).job.stop, asked(max_tokens=5).job.max_tokens) == (("x",), 5)


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("x", Plain("x")), (["x"], Plain("x")), ([1, 2], Raw((1, 2))), ([[1, 2]], Raw((1, 2)))],
)
def test_prompts_of_every_form(prompt: Any, read: Plain | Raw) -> None:
    assert asked(prompt=prompt).job.prompt == read


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"suffix": "return"}, "suffix"),
        ({"logprobs": 0}, "logprobs"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": [1], "echo": True}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    assert refusal(**body).param == field


def test_harmless_fields_are_named() -> None:
    assert asked(user="me", suffix=None, n=1, best_of=1, logprobs=None).ignored_fields == ("user",)


def test_a_stream_says_what_a_whole_answer_says() -> None:
    for body in ({}, {"echo": True}):
        told = whole(**body)
        Completion.model_validate(told)
        assert "".join(chunk["choices"][0]["text"] for chunk in streamed(**body)) == told["choices"][0]["text"]
        assert streamed(**body)[-1]["choices"][0]["finish_reason"] == told["choices"][0]["finish_reason"] == "stop"
    assert whole(echo=True)["choices"][0]["text"] == "def add(a, b):"
    last = streamed(stream_options={"include_usage": True})[-1]
    assert (last["choices"], last["usage"]["total_tokens"], last["forerun"]["source"]) == ([], 9, "ram")
