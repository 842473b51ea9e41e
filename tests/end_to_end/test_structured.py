"""The vendors' libraries on a real server with the bundled model, which knows nothing of schemas: the server alone keeps the form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel
from tests.end_to_end.home import home_at

from forerun.demo.server import Server

QUESTION = "Write a list of three colours."
each_temperature = pytest.mark.parametrize("temperature", [0, 1])


class Verdict(BaseModel):
    """Of a finite length, so that any answer ends."""

    kind: Literal["bug", "style", "none"]
    is_urgent: bool
    where: list[Literal["head", "tail"]] | None


class Paint(BaseModel):
    """Paints something."""

    colour: Literal["red", "green"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with home_at(tmp_path_factory.mktemp("structured")) as home:
        yield home.server


@pytest.fixture
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(temperature: float, *, thinks: bool = False, **more: Any) -> dict[str, Any]:
    extra = {"seed": 7, "enable_thinking": thinks, "max_thinking_tokens": 20} | more.pop("extra_body", {})
    return {"model": "any", "temperature": temperature, "messages": [{"role": "user", "content": QUESTION}], "extra_body": extra, **more}


def message(temperature: float, **more: Any) -> dict[str, Any]:
    body = {"model": "any", "max_tokens": 400, "messages": [{"role": "user", "content": QUESTION}], "thinking": {"type": "disabled"}}
    return body | {"extra_body": {"temperature": temperature, "seed": 7}} | more


def respond(temperature: float, **more: Any) -> dict[str, Any]:
    extra = {"seed": 7, "reasoning": {"max_tokens": 20}}
    return {"model": "any", "input": QUESTION, "temperature": temperature, "extra_body": extra, **more}


@each_temperature
@pytest.mark.parametrize("thinks", [False, True])
def test_chat_parse(gpt: openai.OpenAI, temperature: float, thinks: bool) -> None:
    completion = gpt.chat.completions.parse(**chat(temperature, thinks=thinks), response_format=Verdict)
    assert isinstance(completion.choices[0].message.parsed, Verdict)
    assert completion.usage
    assert completion.usage.completion_tokens_details
    assert (completion.usage.completion_tokens_details.reasoning_tokens or 0) <= 20 + 2  # and the closing tag
    with gpt.chat.completions.stream(**chat(temperature, thinks=thinks), response_format=Verdict) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Verdict)


@each_temperature
def test_responses_parse(gpt: openai.OpenAI, temperature: float) -> None:
    assert isinstance(gpt.responses.parse(**respond(temperature), text_format=Verdict).output_parsed, Verdict)


@each_temperature
def test_messages_parse(claude: anthropic.Anthropic, temperature: float) -> None:
    assert isinstance(claude.messages.parse(**message(temperature), output_format=Verdict).parsed_output, Verdict)


@each_temperature
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "paint"}}], ids=["required", "named"])
def test_a_forced_call_in_chat(gpt: openai.OpenAI, temperature: float, choice: Any) -> None:
    body = chat(temperature, tools=[openai.pydantic_function_tool(Paint, name="paint")], tool_choice=choice, parallel_tool_calls=False)
    (choice,) = gpt.chat.completions.parse(**body).choices
    (call,) = choice.message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Paint)
    assert choice.message.content is None


@each_temperature
def test_a_forced_call_in_responses(gpt: openai.OpenAI, temperature: float) -> None:
    tool: Any = {"type": "function", "name": "paint", "parameters": Paint.model_json_schema(), "strict": True}
    response = gpt.responses.create(**respond(temperature), tools=[tool], tool_choice={"type": "function", "name": "paint"})
    (item,) = [item for item in response.output if item.type != "reasoning"]
    assert item.type == "function_call"
    assert Paint.model_validate_json(item.arguments)


@each_temperature
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "paint"}], ids=["any", "named"])
def test_a_forced_call_in_messages(claude: anthropic.Anthropic, temperature: float, choice: Any) -> None:
    tool: Any = {"name": "paint", "input_schema": Paint.model_json_schema()}
    answer = claude.messages.create(**message(temperature, tools=[tool], tool_choice=choice | {"disable_parallel_tool_use": True}))
    (block,) = answer.content
    assert block.type == "tool_use"
    assert (answer.stop_reason, isinstance(Paint.model_validate(block.input), Paint)) == ("tool_use", True)


@each_temperature
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"structured_outputs": {"grammar": 'root ::= "a" | "bc"'}}, "a|bc"),
        ({"grammar": 'root ::= "a" | "bc"'}, "a|bc"),
    ],
    ids=str,
)
def test_forms_of_other_servers_clients(gpt: openai.OpenAI, temperature: float, form: dict[str, Any], pattern: str) -> None:
    content = gpt.chat.completions.create(**chat(temperature, extra_body=form)).choices[0].message.content
    assert re.fullmatch(pattern, content or "")
    text = (
        gpt.completions.create(model="any", prompt="The answer is ", temperature=temperature, max_tokens=40, extra_body=form)
        .choices[0]
        .text
    )
    assert re.fullmatch(pattern, text)
