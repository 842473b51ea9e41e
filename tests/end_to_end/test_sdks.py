"""The vendors' own libraries against a real server process with scripted answers: whole, streamed, with their helpers, parsers and tool
loops. They check every answer and every event against their own types (`_strict_response_validation`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel
from tests.end_to_end.scripted_server import SAY, command

from forerun.demo.server import Server

LENIENT: dict[str, Any] = {"api_key": "none", "max_retries": 0}
STRICT = LENIENT | {"_strict_response_validation": True}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
FUNCTION: Any = {"type": "function", "function": {"name": "read", "parameters": SCHEMA}}
FLAT: Any = {"type": "function", "name": "read", "parameters": SCHEMA, "strict": False}
TOOL: Any = {"name": "read", "input_schema": SCHEMA}


def call(path: str) -> str:
    """A call in the model's format."""
    return f'<tool_call>\n{{"name": "read", "arguments": {{"path": "{path}"}}}}\n</tool_call>'


HELLO = f"{SAY}Greet.\n</think>\n\nHello"
CALLS = f"{SAY}Look first.\n</think>\n\nI look.\n{call('x')}\n{call('y')}"
AS_JSON = f'{SAY}Look first.\n</think>\n\n{{"path": "x"}}'
EXPECTED_CALLS = [("read", {"path": "x"}), ("read", {"path": "y"})]


class Read(BaseModel):
    """Reads a file."""

    path: str


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sdks")
    server = Server.start(command(folder / "bank"), folder / "server.log")
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def gpt(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", **STRICT) as client:
        yield client


@pytest.fixture(scope="module")
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, **STRICT) as client:
        yield client


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], **more}


def message(text: str, **more: Any) -> dict[str, Any]:
    return chat(text, max_tokens=500, **more)


def respond(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "any", "input": text, **more}


def chat_calls(of: Any) -> list[tuple[str, Any]]:
    return [(each.function.name, json.loads(each.function.arguments)) for each in of.tool_calls]


def item_calls(response: Any) -> list[tuple[str, Any]]:
    return [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]


def block_calls(of: Any) -> list[tuple[str, Any]]:
    return [(block.name, block.input) for block in of.content if block.type == "tool_use"]


# --- chat completions


def test_chat_whole_and_again(gpt: openai.OpenAI) -> None:
    first = gpt.chat.completions.create(**chat(CALLS, tools=[FUNCTION]))
    (choice,) = first.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert (choice.message.model_extra, chat_calls(choice.message)) == ({"reasoning_content": "Look first.\n"}, EXPECTED_CALLS)
    again = gpt.chat.completions.create(**chat(CALLS, tools=[FUNCTION]))
    assert first.usage
    assert again.usage
    assert again.usage.prompt_tokens_details
    assert again.usage.completion_tokens_details
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens == first.usage.prompt_tokens
    assert 0 < again.usage.completion_tokens_details.reasoning_tokens < again.usage.completion_tokens
    assert [model.id for model in gpt.models.list()] == ["fake"]


def test_chat_stream(gpt: openai.OpenAI) -> None:
    """opencode retries forever if no chunk has a `finish_reason`."""
    chunks = list(gpt.chat.completions.create(**chat(HELLO), stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "Hello"
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert chunks[-1].usage is not None
    assert (
        chunks[-1].model_dump()["forerun"]["reused_tokens"] + chunks[-1].model_dump()["forerun"]["computed_tokens"]
        == chunks[-1].usage.prompt_tokens
    )


def test_chat_stream_helper(gpt: openai.OpenAI) -> None:
    with gpt.chat.completions.stream(**chat(CALLS, tools=[FUNCTION])) as stream:
        received = {event.type for event in stream}
        final = stream.get_final_completion().choices[0].message
    assert received >= {"content.delta", "content.done", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"}
    assert (final.content, chat_calls(final)) == ("I look.", EXPECTED_CALLS)


def test_chat_parse(gpt: openai.OpenAI) -> None:
    final = gpt.chat.completions.parse(**chat(CALLS), tools=[openai.pydantic_function_tool(Read, name="read")]).choices[0].message
    assert final.tool_calls is not None
    assert [each.function.parsed_arguments for each in final.tool_calls] == [Read(path="x"), Read(path="y")]
    answer = gpt.chat.completions.parse(**chat(AS_JSON), response_format=Read).choices[0].message
    assert answer.parsed == Read(path="x")
    with gpt.chat.completions.stream(**chat(AS_JSON), response_format=Read) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Read(path="x")


def test_chat_async(url: str) -> None:
    async def scenario() -> tuple[Any, ...]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", **STRICT) as client:
            whole = await client.chat.completions.create(**chat(HELLO))
            chunks = [chunk async for chunk in await client.chat.completions.create(**chat(HELLO), stream=True)]
            async with client.chat.completions.stream(**chat(CALLS, tools=[FUNCTION])) as stream:
                final = (await stream.get_final_completion()).choices[0].message
            parsed = await client.chat.completions.parse(**chat(CALLS), tools=[openai.pydantic_function_tool(Read, name="read")])
            return whole, chunks, final, parsed

    whole, chunks, final, parsed = asyncio.run(scenario())
    assert whole.choices[0].message.content == "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
    assert chat_calls(final) == chat_calls(parsed.choices[0].message) == EXPECTED_CALLS
    assert parsed.choices[0].message.tool_calls[1].function.parsed_arguments == Read(path="y")


def test_chat_logprobs(gpt: openai.OpenAI) -> None:
    body = chat(f"{SAY}Greet.\n</think>\n\nHi 🙂!", logprobs=True, top_logprobs=3)
    (choice,) = gpt.chat.completions.create(**body).choices
    assert choice.logprobs
    assert choice.logprobs.content
    assert bytes(byte for token in choice.logprobs.content for byte in token.bytes or []).decode() == choice.message.content == "Hi 🙂!"
    assert {(token.logprob, len(token.top_logprobs), token.top_logprobs[0].token == token.token) for token in choice.logprobs.content} == {
        (0.0, 3, True)
    }
    with gpt.chat.completions.stream(**body) as stream:
        received = [event for event in stream if event.type == "logprobs.content.delta"]
        final = stream.get_final_completion().choices[0]
    assert [token for event in received for token in event.content] == choice.logprobs.content
    assert final.logprobs == choice.logprobs


def test_chat_choices(gpt: openai.OpenAI) -> None:
    several = gpt.chat.completions.create(**chat(HELLO, n=3))
    assert [(choice.index, choice.message.content) for choice in several.choices] == [(0, "Hello"), (1, "Hello"), (2, "Hello")]
    reports = [(choice.model_extra or {})["forerun"] for choice in several.choices]
    assert [report["computed_tokens"] for report in reports[1:]] == [0, 0]
    with gpt.chat.completions.stream(**chat(HELLO, n=2)) as stream:
        assert [choice.message.content for choice in stream.get_final_completion().choices] == ["Hello", "Hello"]


# --- completions


def test_completions(gpt: openai.OpenAI, url: str) -> None:
    """The library's type does not allow the null that OpenAI's streams have as `finish_reason` until the end."""
    body: Any = {"model": "any", "prompt": f"def add({SAY}a, b):"}
    whole = gpt.completions.create(**body, echo=True)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (f"def add({SAY}a, b):a, b):", "stop")
    with openai.OpenAI(base_url=f"{url}/v1", **LENIENT) as lenient:
        chunks = list(lenient.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "a, b):"
    assert whole.usage
    assert chunks[-1].usage
    assert whole.usage.total_tokens == chunks[-1].usage.total_tokens
    assert gpt.completions.create(**body, max_tokens=1).choices[0].finish_reason == "length"


def test_completions_logprobs_of_prompts_and_answers(url: str) -> None:
    """As evaluation harnesses do: token prompts, several at once, one token more than needed. The library's type does not allow null."""
    prompt = f"def add({SAY}a, b):"
    with openai.OpenAI(base_url=f"{url}/v1", **LENIENT) as client:
        body: Any = {"model": "any", "prompt": [prompt, "x 🙂"], "logprobs": 2, "echo": True, "max_tokens": 20}
        whole = client.completions.create(**body)
        chunks = list(client.completions.create(**body, stream=True))
    for choice in whole.choices:
        received = choice.logprobs
        assert received
        assert received.tokens
        assert received.token_logprobs
        assert received.top_logprobs
        assert received.text_offset
        assert (received.token_logprobs[0], received.top_logprobs[0]) == (None, None)
        rows = zip(received.tokens, received.token_logprobs, received.top_logprobs, received.text_offset, strict=True)
        for token, logprob, top, offset in list(rows)[1:-1]:
            assert top[token] == logprob
            assert choice.text.startswith(token, offset) or token.startswith("bytes:")
        assert received.text_offset[-1] == len(choice.text)  # of the token that ended the answer
        parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].index == choice.index]
        assert [token for part in parts if part for token in part.tokens or []] == received.tokens
        assert [offset for part in parts if part for offset in part.text_offset or []] == received.text_offset
    assert [choice.text for choice in whole.choices] == [f"{prompt}a, b):", "x 🙂I see."]
    assert whole.usage
    assert whole.usage.total_tokens == sum(len(choice.logprobs.tokens or ()) for choice in whole.choices if choice.logprobs)


def test_completions_async(url: str) -> None:
    async def scenario() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", **LENIENT) as client:
            body: Any = {"model": "any", "prompt": f"def add({SAY}a, b):"}
            whole = await client.completions.create(**body)
            return whole.choices[0].text, "".join([c.choices[0].text async for c in await client.completions.create(**body, stream=True)])

    assert asyncio.run(scenario()) == ("a, b):", "a, b):")


# --- responses


def test_responses_whole(gpt: openai.OpenAI) -> None:
    response = gpt.responses.create(**respond(CALLS, tools=[FLAT]))
    assert (response.output_text, response.status, item_calls(response)) == ("I look.", "completed", EXPECTED_CALLS)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    usage = gpt.responses.create(**respond(CALLS, tools=[FLAT])).usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens == usage.input_tokens
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens == usage.total_tokens - usage.input_tokens


def test_responses_stream(gpt: openai.OpenAI) -> None:
    """Codex takes text and calls from done items alone; without `completed` it retries."""
    events = list(gpt.responses.create(**respond(CALLS, tools=[FLAT]), stream=True))
    items = [event.item for event in events if event.type == "response.output_item.done"]
    last = events[-1]
    assert (events[0].type, last.type) == ("response.created", "response.completed")
    assert items == last.response.output
    assert (last.response.output_text, item_calls(last.response)) == ("I look.", EXPECTED_CALLS)
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_responses_logprobs(gpt: openai.OpenAI) -> None:
    body = respond(HELLO, include=["message.output_text.logprobs"], top_logprobs=2)
    response = gpt.responses.create(**body)
    (part,) = [part for item in response.output if item.type == "message" for part in item.content if part.type == "output_text"]
    assert part.logprobs
    assert "".join(token.token for token in part.logprobs) == part.text == "Hello"
    events = list(gpt.responses.create(**body, stream=True))
    received = [token.token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert received == [token.token for token in part.logprobs]


def test_responses_stream_helper_and_parse(gpt: openai.OpenAI) -> None:
    with gpt.responses.stream(**respond(CALLS, tools=[FLAT])) as stream:
        received = {event.type for event in stream}
        final = stream.get_final_response()
    assert received >= {"response.output_text.delta", "response.function_call_arguments.delta", "response.completed"}
    assert (final.output_text, item_calls(final)) == ("I look.", EXPECTED_CALLS)
    parsed = gpt.responses.parse(**respond(CALLS), tools=[openai.pydantic_function_tool(Read, name="read")])
    assert [item.parsed_arguments for item in parsed.output if item.type == "function_call"] == [Read(path="x"), Read(path="y")]
    assert gpt.responses.parse(**respond(AS_JSON), text_format=Read).output_parsed == Read(path="x")
    with gpt.responses.stream(**respond(AS_JSON), text_format=Read) as stream:
        assert stream.get_final_response().output_parsed == Read(path="x")


def test_responses_async(url: str) -> None:
    async def scenario() -> tuple[Any, ...]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", **STRICT) as client:
            whole = await client.responses.create(**respond(HELLO))
            events = [event async for event in await client.responses.create(**respond(HELLO), stream=True)]
            async with client.responses.stream(**respond(CALLS, tools=[FLAT])) as stream:
                final = await stream.get_final_response()
            return whole, events, final, await client.responses.parse(**respond(CALLS, tools=[FLAT]))

    whole, events, final, parsed = asyncio.run(scenario())
    assert whole.output_text == events[-1].response.output_text == "Hello"
    assert item_calls(final) == item_calls(parsed) == EXPECTED_CALLS


# --- messages


def test_messages_whole_and_counted(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(**message(CALLS, tools=[TOOL]))
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (whole.stop_reason, block_calls(whole)) == ("tool_use", EXPECTED_CALLS)
    again = claude.messages.create(**message(CALLS, tools=[TOOL])).usage
    counted = claude.messages.count_tokens(**chat(CALLS, tools=[TOOL])).input_tokens
    assert (again.input_tokens, again.cache_creation_input_tokens, again.cache_read_input_tokens) == (0, 0, counted)
    assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) == counted
    assert [model.id for model in claude.models.list()] == ["fake"]


def test_messages_stream(claude: anthropic.Anthropic) -> None:
    """Claude Code retries if a start is missing, and shows nothing if a stop is."""
    received = list(claude.messages.create(**message(CALLS, tools=[TOOL]), stream=True))
    blocks = [(event.type, event.index) for event in received if event.type in ("content_block_start", "content_block_stop")]
    assert (received[0].type, received[-1].type) == ("message_start", "message_stop")
    assert blocks == [(f"content_block_{what}", index) for index in range(4) for what in ("start", "stop")]


def test_messages_stream_helper(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(**message(CALLS, tools=[TOOL])) as stream:
        received = {event.type for event in stream}
        final = stream.get_final_message()
    assert received >= {"text", "thinking", "input_json", "content_block_stop", "message_stop"}
    assert (final.content[0].type, final.content[1].type, block_calls(final)) == ("thinking", "text", EXPECTED_CALLS)
    assert final.usage.output_tokens > 20


def test_messages_parse(claude: anthropic.Anthropic) -> None:
    assert claude.messages.parse(**message(AS_JSON), output_format=Read).parsed_output == Read(path="x")
    with claude.messages.stream(**message(AS_JSON), output_format=Read) as stream:
        assert stream.get_final_message().parsed_output == Read(path="x")


def test_a_custom_tools_call(gpt: openai.OpenAI) -> None:
    answer = f'{SAY}Look.\n</think>\n\n<tool_call>\n{{"name": "say", "arguments": {{"input": "aa"}}}}\n</tool_call>'
    grammar: Any = {"syntax": "regex", "definition": "a+"}
    tool: Any = {"type": "custom", "custom": {"name": "say", "format": {"type": "grammar", "grammar": grammar}}}
    (one,) = gpt.chat.completions.create(**chat(answer, tools=[tool])).choices[0].message.tool_calls or ()
    assert one.type == "custom"
    assert (one.custom.name, one.custom.input) == ("say", "aa")
    flat: Any = {"type": "custom", "name": "say", "format": {"type": "grammar", **grammar}}
    (item,) = [item for item in gpt.responses.create(**respond(answer, tools=[flat])).output if item.type == "custom_tool_call"]
    assert (item.name, item.input) == ("say", "aa")


def test_messages_async(url: str) -> None:
    async def scenario() -> tuple[Any, ...]:
        async with anthropic.AsyncAnthropic(base_url=url, **STRICT) as client:
            whole = await client.messages.create(**message(HELLO))
            async with client.messages.stream(**message(HELLO)) as stream:
                text = "".join([piece async for piece in stream.text_stream])
            counted = await client.messages.count_tokens(**chat(HELLO))
            events = [event async for event in await client.messages.create(**message(CALLS, tools=[TOOL]), stream=True)]
            return whole, text, counted, events

    whole, text, counted, events = asyncio.run(scenario())
    assert [block.text for block in whole.content if block.type == "text"] == [text] == ["Hello"]
    assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens == counted.input_tokens
    assert {event.type for event in events} >= {"message_start", "content_block_start", "content_block_stop", "message_stop"}


def test_a_loop_of_tools_driven_by_the_library(claude: anthropic.Anthropic) -> None:
    @anthropic.beta_tool
    def read(path: str) -> str:
        """Reads a file."""
        return f"{SAY}It says x.\n</think>\n\nDone with {path}."

    messages = list(claude.beta.messages.tool_runner(**message(f"{SAY}Look.\n</think>\n\n{call('x')}"), tools=[read]))
    assert [each.stop_reason for each in messages] == ["tool_use", "end_turn"]
    assert [block.text for block in messages[-1].content if block.type == "text"] == ["Done with x."]
    assert (messages[1].usage.cache_read_input_tokens or 0) >= messages[0].usage.input_tokens
