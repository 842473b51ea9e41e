"""Case 13: values by which clients mean none, or the default."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.rendered import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answers, case
from tests.serve.asking import ask
from tests.serve.engine_double import INFO, Engine

from forerun.serve.app import CHAT as CHAT_DIALECT
from forerun.serve.app import COMPLETIONS as COMPLETIONS_DIALECT
from forerun.serve.app import MESSAGES as MESSAGES_DIALECT
from forerun.serve.response_routes import RESPONSES as RESPONSES_DIALECT
from forerun.values import Job

CASE = case("13-values-for-no-limit")["requests"]
HELLO = [{"role": "user", "content": "hi"}]
DIALECTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    CHAT: (CHAT_DIALECT, {"messages": HELLO}, "max_tokens"),
    COMPLETIONS: (COMPLETIONS_DIALECT, {"prompt": "hi"}, "max_tokens"),
    MESSAGES: (MESSAGES_DIALECT, {"messages": HELLO, "max_tokens": 4}, "max_tokens"),
    RESPONSES: (RESPONSES_DIALECT, {"input": "hi"}, "max_output_tokens"),
}
each_dialect = pytest.mark.parametrize("path", DIALECTS)


@pytest.mark.parametrize("sent", CASE, ids=[str(list(each["body"].items())[1:])[:60] for each in CASE])
def test_the_case(server: Answers, sent: dict[str, Any]) -> None:
    assert server.report(CHAT, sent["body"])["ignored_fields"] == []


def job(path: str, **fields: Any) -> Job:
    dialect, body, _ = DIALECTS[path]
    parsed: Job = dialect.parse(body | fields, INFO, id="1", tenant="").jobs[0]
    engine = Engine()
    assert ask(engine, "POST", path, json=body | fields).status_code == 200
    assert engine.jobs[0].sampling == parsed.sampling
    return parsed


@each_dialect
@pytest.mark.parametrize("value", [-1, -1.0, -5, -(10**30)])
def test_a_limit_below_0_is_none(path: str, value: float) -> None:
    assert job(path, **{DIALECTS[path][2]: value}).max_tokens is None


@pytest.mark.parametrize(("path", "expected"), [(CHAT, None), (RESPONSES, None), (MESSAGES, 0), (COMPLETIONS, 0)])
def test_0_is_none_unless_it_means_prefill_only(path: str, expected: int | None) -> None:
    assert job(path, **{DIALECTS[path][2]: 0}).max_tokens == expected


def test_the_other_limit_of_chat_counts_where_the_first_is_none() -> None:
    assert job(CHAT, max_completion_tokens=-1, max_tokens=5).max_tokens == 5
    assert job(CHAT, max_completion_tokens=5, max_tokens=-1).max_tokens == 5


def test_a_response_repeats_no_limit() -> None:
    engine = Engine()
    assert ask(engine, "POST", RESPONSES, json={"input": "hi", "max_output_tokens": -1}).json()["max_output_tokens"] is None


@pytest.mark.parametrize(("path", "name"), [(CHAT, "stop"), (COMPLETIONS, "stop"), (MESSAGES, "stop_sequences")])
def test_stop_strings(path: str, name: str) -> None:
    for value in ("", [""], ["", ""], [], None, [None]):
        assert job(path, **{name: value}).stop == ()
    assert job(path, **{name: ["", "a", ""]}).stop == ("a",)
    assert job(path, **{name: [f"s{i}" for i in range(64)]}).stop == tuple(f"s{i}" for i in range(64))


@each_dialect
def test_sampling(path: str) -> None:
    sampling = job(path, top_p=0, repetition_penalty=0).sampling
    assert (sampling.top_p, sampling.repetition_penalty) == (0, 1.0)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("form", ["{}", "word"])
def test_a_choice_of_tools_is_a_word_or_an_object(path: str, form: str) -> None:
    parameters = {"type": "object"}
    tools = {
        CHAT: {"type": "function", "function": {"name": "f", "parameters": parameters}},
        MESSAGES: {"name": "f", "input_schema": parameters},
        RESPONSES: {"type": "function", "name": "f", "parameters": parameters},
    }
    for word, num in (("auto", 1), ("none", 0)):
        prompt: Any = job(path, tools=[tools[path]], tool_choice={"type": word} if form == "{}" else word).prompt
        assert len(prompt.tools) == num
    response = ask(Engine(), "POST", path, json=DIALECTS[path][1] | {"tools": [tools[path]], "tool_choice": "some"})
    assert response.status_code == 400
