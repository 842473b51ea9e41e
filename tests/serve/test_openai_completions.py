from collections.abc import Sequence
from typing import Any

import pytest
from openai.types import Completion
from openai.types.completion_choice import Logprobs
from tests.serve.asking import values
from tests.serve.engine_double import DONE, INFO, REPORT, SUGGESTED
from tests.serve.refusals import refusals

from forerun.serve.openai_choices import ParsedRequest, StreamedResponse, WholeResponse
from forerun.serve.openai_completions import parse
from forerun.values import (
    Content,
    Done,
    Event,
    LogprobsRequest,
    PrefillProgress,
    PromptLogprobs,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
    TopToken,
    Usage,
)

ANSWER: Sequence[Event] = (PrefillProgress(4, 7, 3, None), Content("a, "), Content("b):"), DONE)


def parsed(**body: Any) -> ParsedRequest:
    return parse({"prompt": "def add("} | body, INFO, id="cmpl-1", tenant="ann")


refusal = refusals(parsed)


def whole(events: Sequence[Event] = ANSWER, **body: Any) -> dict[str, Any]:
    answer = WholeResponse(parsed(**body), INFO, created_unix_s=5)
    for event in events:
        answer.take(event)
    return answer.body()


def streamed(events: Sequence[Event] = ANSWER, **body: Any) -> list[dict[str, Any]]:
    stream = StreamedResponse(parsed(**body), INFO, created_unix_s=5)
    text = b"".join(frame for event in events for frame in stream.frames(event)).decode()
    assert text.endswith("data: [DONE]\n\n")
    return values(text)


def test_what_is_left_out_is_the_models_default_but_the_length() -> None:
    job = parsed().jobs[0]
    assert (job.prompt, job.sampling, job.max_tokens, job.stop) == (TextPrompt("def add("), SUGGESTED, 16, ())
    assert (parsed(stop="x", max_tokens=5).jobs[0].stop, parsed(max_tokens=5).jobs[0].max_tokens) == (("x",), 5)
    assert parsed(max_tokens=0).jobs[0].max_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("x", [TextPrompt("x")]),
        (["x"], [TextPrompt("x")]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1, 2]], [TokenPrompt((1, 2))]),
        (["x", "y"], [TextPrompt("x"), TextPrompt("y")]),
        ([[1, 2], "y"], [TokenPrompt((1, 2)), TextPrompt("y")]),
    ],
)
def test_prompts_of_every_form(prompt: Any, expected: list[TextPrompt | TokenPrompt]) -> None:
    assert [job.prompt for job in parsed(prompt=prompt).jobs] == expected


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 2, "n": 65}, "n"),
        ({"n": 0}, "n"),
        ({"suffix": "return"}, "suffix"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": [1], "echo": True}, "echo"),
        ({"max_tokens": 1.5}, "max_tokens"),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(body: dict[str, Any], field: str) -> None:
    assert refusal(**body).param == field


def test_harmless_fields_are_named() -> None:
    assert parsed(user="me", suffix=None, n=1, best_of=1, logprobs=None).ignored_fields == ("user",)


def test_a_stream_equals_the_whole_answer() -> None:
    for body in ({}, {"echo": True}):
        response = whole(**body)
        Completion.model_validate(response)
        assert "".join(chunk["choices"][0]["text"] for chunk in streamed(**body)) == response["choices"][0]["text"]
        assert streamed(**body)[-1]["choices"][0]["finish_reason"] == response["choices"][0]["finish_reason"] == "stop"
    assert whole(echo=True)["choices"][0]["text"] == "def add(a, b):"
    last = streamed(stream_options={"include_usage": True})[-1]
    assert (last["choices"], last["usage"]["total_tokens"], last["forerun"]["source"]) == ([], 9, "ram")


# --- probabilities

HALF, REST = "é".encode()[:1], "é".encode()[1:]
SCORED: Sequence[Event] = (
    PromptLogprobs((TokenLogprob(b"def", None, ()),)),
    PromptLogprobs((TokenLogprob(b" ad", -1.5, (TopToken(b" a", -0.5), TopToken(b" ad", -1.5))), TokenLogprob(b"d(", -9999.0, ()))),
    PrefillProgress(4, 7, 0, None),
    Content("a", (TokenLogprob(b"a", -0.25, (TopToken(b"a", -0.25), TopToken(HALF, -2.0))),)),
    Content("é", (TokenLogprob(HALF, -2.0, (TopToken(b"b", -0.5), TopToken(b"b", -1.0))), TokenLogprob(REST, 0.0, ()))),
    Done("stop", Usage(3, 0, 4, 0), REPORT, "", (TokenLogprob(b"<|end|>", -0.125, ()),)),
)
COLUMNS = {
    "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "<|end|>"],
    "token_logprobs": [-0.25, -2.0, 0.0, -0.125],
    "top_logprobs": [{"a": -0.25, "bytes:\\xc3": -2.0}, {"b": -0.5, "bytes:\\xc3": -2.0}, {"bytes:\\xa9": 0.0}, {"<|end|>": -0.125}],
    "text_offset": [0, 1, 1, 2],
}
OF_PROMPT = {
    "tokens": ["def", " ad", "d("],
    "token_logprobs": [None, -1.5, -9999.0],
    "top_logprobs": [None, {" a": -0.5, " ad": -1.5}, {"d(": -9999.0}],
    "text_offset": [0, 3, 6],
}


def columns(chunks: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The columns of a stream's chunks, put together."""
    response = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    return {name: [each for part in response for each in part[name]] for name in COLUMNS}


def test_tokens_have_logprobs() -> None:
    assert parsed(logprobs=2).jobs[0].logprobs == LogprobsRequest(2, of_prompt=False)
    assert parsed(logprobs=0, echo=True).jobs[0].logprobs == LogprobsRequest(0, of_prompt=True)
    events = SCORED[2:]
    response = whole(events, logprobs=2)["choices"][0]
    assert (response["text"], response["logprobs"]) == ("aé", COLUMNS)
    Logprobs.model_validate(response["logprobs"])
    assert columns(streamed(events, logprobs=2)) == COLUMNS
    assert whole(events)["choices"][0]["logprobs"] is None
    assert {chunk["choices"][0]["logprobs"] for chunk in streamed(events)} == {None}


@pytest.mark.parametrize("prompt", ["def add(", [1, 2, 3]])
def test_an_echo_has_logprobs(prompt: Any) -> None:
    response = whole(SCORED, prompt=prompt, logprobs=2, echo=True)["choices"][0]
    assert response["text"] == "def add(aé"
    expected = {name: OF_PROMPT[name] + COLUMNS[name] for name in COLUMNS}
    expected["text_offset"] = [0, 3, 6, 8, 9, 9, 10]
    assert response["logprobs"] == expected
    chunks = streamed(SCORED, prompt=prompt, logprobs=2, echo=True)
    assert chunks[0]["choices"][0]["text"] == "def add("
    assert columns(chunks) == expected


# --- several choices


def test_each_prompt_has_its_choices() -> None:
    jobs = parsed(prompt=["x", "y"], n=2, seed=5).jobs
    assert [(job.id, job.prompt, job.sampling.seed) for job in jobs] == [
        ("cmpl-1-0", TextPrompt("x"), 5),
        ("cmpl-1-1", TextPrompt("x"), 6),
        ("cmpl-1-2", TextPrompt("y"), 5),
        ("cmpl-1-3", TextPrompt("y"), 6),
    ]
    assert [job.sampling.seed for job in parsed(n=2).jobs] == [None, None]


def test_choices_are_sent_one_after_the_other() -> None:
    other = (Content("c"), Done("length", Usage(5, 1, 1, 0), REPORT, ""))
    events, body = (*ANSWER, *other), {"prompt": ["x", "y"], "echo": True}
    response = whole(events, **body)
    Completion.model_validate(response)
    assert [(each["index"], each["text"], each["finish_reason"]) for each in response["choices"]] == [
        (0, "xa, b):", "stop"),
        (1, "yc", "length"),
    ]
    assert (response["usage"]["prompt_tokens"], response["usage"]["completion_tokens"]) == (12, 3)
    assert response["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert [each["forerun"]["source"] for each in response["choices"]] == ["ram", "ram"]
    assert response["forerun"] == {"ignored_fields": []}
    chunks = streamed(events, **body, stream_options={"include_usage": True})
    text = {0: "", 1: ""}
    for chunk in chunks[:-1]:
        text[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert text == {0: "xa, b):", 1: "yc"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1] if chunk["choices"][0]["finish_reason"]] == ["stop", "length"]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], response["usage"])


def test_a_prompt_counts_once_however_many_choices_it_has() -> None:
    response = whole((*ANSWER, *ANSWER), n=2)
    assert (response["usage"]["prompt_tokens"], response["usage"]["completion_tokens"]) == (7, 4)
