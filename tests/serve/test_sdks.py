"""What the vendors' own libraries make of the server, over real sockets: their types, their streams, their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from tests.serve.asking import serving
from tests.serve.engine_double import DONE, Engine
from tests.serve.test_anthropic import ANSWER, TOOL

from forerun.errors import BadRequestError, BusyError, ContextLengthError, NumericsError
from forerun.values import Content, Reading

READ = Reading(4, 7, 3, None)
FUNCTION: Any = {"type": "function", "name": "read", "parameters": TOOL["input_schema"], "strict": False}
ASKED: Any = {"model": "any", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
CALL = {"path": "x"}


@contextmanager
def messages_of(engine: Engine) -> Iterator[anthropic.Anthropic]:
    with serving(engine) as port, anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0) as client:
        yield client


@contextmanager
def responses_of(engine: Engine) -> Iterator[openai.OpenAI]:
    with serving(engine) as port, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_anthropic_whole() -> None:
    with messages_of(Engine(*ANSWER)) as client:
        message = client.messages.create(**ASKED, tools=[TOOL])
        assert client.messages.count_tokens(model="any", messages=ASKED["messages"]).input_tokens == 11
        assert [(model.id, model.created_at.year) for model in client.models.list()] == [("double", 2023)]
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (message.stop_reason, message.content[2].input) == ("tool_use", CALL)
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (4, 3)


def test_anthropic_stream() -> None:
    with messages_of(Engine(*ANSWER)) as client, client.messages.stream(**ASKED, tools=[TOOL]) as stream:
        told = [event.type for event in stream]
        message = stream.get_final_message()
    assert {"text", "thinking", "input_json", "content_block_stop", "message_stop"} <= set(told)
    assert (message.content[0].thinking, message.content[1].text, message.content[2].input) == ("Look first.", "I look.", CALL)
    assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", 20)


def test_anthropic_async() -> None:
    async def scenario(port: int) -> tuple[Any, Any]:
        async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", auth_token="none", max_retries=0) as client:
            async with client.messages.stream(**ASKED) as stream:
                text = "".join([piece async for piece in stream.text_stream])
            return text, await client.messages.create(**ASKED)

    with serving(Engine(READ, Content("Hel"), Content("lo"), DONE)) as port:
        text, message = asyncio.run(scenario(port))
    assert text == message.content[0].text == "Hello"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (BadRequestError("no"), anthropic.BadRequestError),
        (ContextLengthError("prompt is too long"), anthropic.BadRequestError),
        (BusyError("16 wait", retry_after_s=3), anthropic.InternalServerError),
    ],
)
def test_anthropic_errors(error: Any, raised: type[anthropic.APIStatusError]) -> None:
    with messages_of(Engine(refusal=error)) as client, pytest.raises(raised, match=str(error)) as caught:
        client.messages.create(**ASKED)
    assert caught.value.body["type"] == "error"


def test_anthropic_error_in_a_stream() -> None:
    with (
        messages_of(Engine(READ, Content("a"), NumericsError("not finite"))) as client,
        pytest.raises(anthropic.APIStatusError, match="finite"),
    ):
        list(client.messages.create(**ASKED, stream=True))


def test_responses_whole() -> None:
    with responses_of(Engine(*ANSWER)) as client:
        response = client.responses.create(model="any", input="hello", tools=[FUNCTION])
    assert (response.output_text, response.status) == ("I look.", "completed")
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output[2].arguments == '{"path": "x"}'
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (7, 3)


def test_responses_stream() -> None:
    with responses_of(Engine(*ANSWER)) as client, client.responses.stream(model="any", input="hello", tools=[FUNCTION]) as stream:
        told = [event.type for event in stream]
        response = stream.get_final_response()
    assert told[0] == "response.created"
    assert told[-1] == "response.completed"
    assert (response.output_text, response.output[2].arguments) == ("I look.", '{"path": "x"}')


def test_responses_async() -> None:
    async def scenario(port: int) -> tuple[list[Any], Any]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            events = [event async for event in await client.responses.create(model="any", input="hello", stream=True)]
            return events, await client.responses.create(model="any", input="hello")

    with serving(Engine(READ, Content("Hel"), Content("lo"), DONE)) as port:
        events, response = asyncio.run(scenario(port))
    assert events[-1].response.output_text == response.output_text == "Hello"


def test_responses_errors() -> None:
    with (
        responses_of(Engine(refusal=BusyError("16 wait", retry_after_s=3))) as client,
        pytest.raises(openai.InternalServerError, match="16 wait"),
    ):
        client.responses.create(model="any", input="hello")
    with responses_of(Engine()) as client, pytest.raises(openai.BadRequestError, match="previous_response_id") as caught:
        client.responses.create(model="any", input="hello", previous_response_id="resp_0")
    assert caught.value.param == "previous_response_id"
    with responses_of(Engine(READ, NumericsError("not finite"))) as client:
        events = list(client.responses.create(model="any", input="hello", stream=True))
    assert (events[-1].type, events[-1].response.error.message) == ("response.failed", "not finite")
