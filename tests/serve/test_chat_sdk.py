"""What OpenAI's library makes of the chat dialect, over real sockets: whole, streamed, with its helpers, and with its parser of calls."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from tests.serve.asking import serving
from tests.serve.engine_double import DONE, REPORT, Engine
from tests.serve.test_openai_chat import CALLS, TOOL
from tests.serve.test_sdks import READ, responses_of

from forerun.values import Content, Done, Reasoning

ASKED: Any = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}
CALLED = Done("calls", DONE.usage, REPORT, "")
ANSWER = (READ, Reasoning("Hm"), Content("I look."), *CALLS, CALLED)
GIVEN = [("a", "read", '{"path": "x"}'), ("b", "stop", "{}")]


def calls_of(message: Any) -> list[tuple[str, str, str]]:
    return [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]


def test_whole() -> None:
    with responses_of(Engine(*ANSWER)) as client:
        completion = client.chat.completions.create(**ASKED, tools=[TOOL])
    choice = completion.choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.model_extra) == (
        "tool_calls",
        "I look.",
        {"reasoning_content": "Hm"},
    )
    assert calls_of(choice.message) == GIVEN
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 1


def test_the_stream_helper_puts_it_together() -> None:
    with responses_of(Engine(*ANSWER)) as client, client.chat.completions.stream(**ASKED, tools=[TOOL]) as stream:
        told = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert {"content.delta", "content.done", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= set(told)
    assert (message.content, calls_of(message)) == ("I look.", GIVEN)


class Read(BaseModel):
    """Reads a file."""

    path: str


def test_calls_are_parsed_into_the_callers_types() -> None:
    tool = openai.pydantic_function_tool(Read, name="read")
    with responses_of(Engine(READ, *CALLS[:4], CALLED)) as client:
        message = client.chat.completions.parse(**ASKED, tools=[tool]).choices[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.parsed_arguments == Read(path="x")


def test_async() -> None:
    async def scenario(port: int) -> tuple[str, Any]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            chunks = [chunk async for chunk in await client.chat.completions.create(**ASKED, stream=True)]
            return "".join(c.choices[0].delta.content or "" for c in chunks), await client.chat.completions.create(**ASKED)

    with serving(Engine(READ, Content("Hel"), Content("lo"), DONE)) as port:
        text, completion = asyncio.run(scenario(port))
    assert text == completion.choices[0].message.content == "Hello"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "read"}}])
def test_a_forced_call_is_refused_in_words(choice: Any) -> None:
    with responses_of(Engine(*ANSWER)) as client, pytest.raises(openai.BadRequestError, match="tool_choice") as caught:
        client.chat.completions.create(**ASKED, tools=[TOOL], tool_choice=choice)
    assert caught.value.param == "tool_choice"
