"""What every dialect must do with an answer: return the same streamed and whole, wherever text and bytes are cut, and count its tokens.

Each dialect's frames are decoded by a client's own decoder, and assembled as its clients do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.serve.engine_double import INFO, REPORT
from tests.serve.test_anthropic import put_together
from tests.text.conftest import no_logprobs
from tests.text.test_answer_parser import SCRAPS, TOOLS, WAYS, WRITERS

from forerun.serve.app import CHAT, COMPLETIONS, MESSAGES
from forerun.serve.dialect import Dialect
from forerun.serve.response_routes import RESPONSES
from forerun.text.answer_parser import PLAIN, AnswerFormat, AnswerParser
from forerun.text.calls.call_format import CallFormat
from forerun.text.calls.json_calls import Llama
from forerun.text.prompt import call_id
from forerun.text.reasoning import THINK
from forerun.values import Content, Done, Event, Finish, PrefillProgress, QueuePosition, Usage

Value = dict[str, Any]
MESSAGE_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
RESPONSE_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PROGRESS = PrefillProgress(4, 70, 30, None)
USAGE = Usage(70, 30, 20, 5)
TEXT_CHAR, ARGUMENT_CHAR, HELD_CHARS = "Q", "Z", len("</parameter>")
ODD = st.sampled_from(["\u2028", "\x85", "\r\n", "\r", "🙂", "data: x\n\n", "\x00"])


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """An answer as a client assembles it. usage: tokens of the prompt, cached, of the completion, of the reasoning, in all."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, str, str], ...]
    finish: str
    usage: tuple[int, ...]


def openai_usage(usage: Value) -> tuple[int, ...]:
    cached, reasoning = usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], cached, usage["completion_tokens"], reasoning, usage["total_tokens"]


def chat_whole(body: Value) -> ClientAnswer:
    choice = ChatCompletion.model_validate(body, strict=True).choices[0]
    calls = tuple(
        (each.id, each.function.name, each.function.arguments) for each in choice.message.tool_calls or () if each.type == "function"
    )
    reasoning = (choice.message.model_extra or {}).get("reasoning_content", "")
    return ClientAnswer(reasoning, choice.message.content or "", calls, choice.finish_reason, openai_usage(body["usage"]))


def chat_streamed(values: list[Value]) -> ClientAnswer:
    reasoning, text, calls, finish = "", "", dict[int, list[str]](), ""
    for chunk in values:
        for choice in ChatCompletionChunk.model_validate(chunk, strict=True).choices:
            finish = choice.finish_reason or finish
            text += choice.delta.content or ""
            reasoning += (choice.delta.model_extra or {}).get("reasoning_content", "")
            for call in choice.delta.tool_calls or []:
                assert call.function
                calls.setdefault(call.index, [call.id or "", call.function.name or "", ""])[2] += call.function.arguments or ""
    return ClientAnswer(reasoning, text, tuple((a, b, c) for a, b, c in calls.values()), finish, openai_usage(values[-1]["usage"]))


def completions_whole(body: Value) -> ClientAnswer:
    choice = Completion.model_validate(body, strict=True).choices[0]
    return ClientAnswer("", choice.text, (), choice.finish_reason, openai_usage(body["usage"]))


def completions_streamed(values: list[Value]) -> ClientAnswer:
    choices = [choice for chunk in values for choice in chunk["choices"]]
    return ClientAnswer("", "".join(each["text"] for each in choices), (), choices[-1]["finish_reason"], openai_usage(values[-1]["usage"]))


def blocks(content: list[Value], reason: str, usage: Value) -> ClientAnswer:
    reasoning = "".join(block["thinking"] for block in content if block["type"] == "thinking")
    text = "".join(block["text"] for block in content if block["type"] == "text")
    calls = tuple((block["id"], block["name"], json.dumps(block["input"])) for block in content if block["type"] == "tool_use")
    assert usage["cache_creation_input_tokens"] == 0
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    completion, thinking = usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"]
    return ClientAnswer(
        reasoning, text, calls, reason, (prompt, usage["cache_read_input_tokens"], completion, thinking, prompt + completion)
    )


def messages_whole(body: Value) -> ClientAnswer:
    Message.model_validate(body, strict=True)
    return blocks(body["content"], body["stop_reason"], body["usage"])


def messages_streamed(values: list[Value]) -> ClientAnswer:
    for value in values:
        if value["type"] != "ping":
            MESSAGE_EVENTS.validate_python(value)
    ending = next(value for value in values if value["type"] == "message_delta")
    return blocks(put_together(values), ending["delta"]["stop_reason"], ending["usage"])


def responses_whole(body: Value) -> ClientAnswer:
    response = Response.model_validate(body)
    items = response.output
    reasoning = "".join(part.text for item in items if item.type == "reasoning" for part in item.content or ())
    calls = tuple((item.call_id, item.name, item.arguments) for item in items if item.type == "function_call")
    assert response.usage
    cached, thinking = response.usage.input_tokens_details.cached_tokens, response.usage.output_tokens_details.reasoning_tokens
    usage = (response.usage.input_tokens, cached, response.usage.output_tokens, thinking, response.usage.total_tokens)
    return ClientAnswer(reasoning, response.output_text, calls, response.status or "", usage)


def responses_streamed(values: list[Value]) -> ClientAnswer:
    """From the items that are done, as Codex does it."""
    for value in values:
        RESPONSE_EVENTS.validate_python(value)
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    items = [value["item"] for value in values if value["type"] == "response.output_item.done"]
    return responses_whole(values[-1]["response"] | {"output": items})


@dataclass(frozen=True, slots=True)
class Client:
    """A dialect, a request in it, how clients assemble its answers, and its finish reason of an answer that was cut off."""

    dialect: Dialect[Any]
    request: Value
    whole: Callable[[Value], ClientAnswer]
    streamed: Callable[[list[Value]], ClientAnswer]
    cut: str


MESSAGE = [{"role": "user", "content": "x"}]
WITH_USAGE = {"stream_options": {"include_usage": True}}
CLIENTS = {
    "chat": Client(CHAT, {"messages": MESSAGE, **WITH_USAGE}, chat_whole, chat_streamed, "length"),
    "completions": Client(COMPLETIONS, {"prompt": "x", **WITH_USAGE}, completions_whole, completions_streamed, "length"),
    "messages": Client(MESSAGES, {"messages": MESSAGE, "max_tokens": 20}, messages_whole, messages_streamed, "max_tokens"),
    "responses": Client(RESPONSES, {"input": "x"}, responses_whole, responses_streamed, "incomplete"),
}
each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


def events_of(chunks: Iterable[str], answer_format: AnswerFormat, finish: Finish, *, opens: bool) -> list[Event]:
    """The events of an answer that arrives in these chunks."""
    parser = AnswerParser(answer_format, TOOLS, partial(call_id, "job"), opens_reasoning=opens, logprobs_of=no_logprobs)
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)] + parser.flush()
    return [QueuePosition(1), PROGRESS, *pieces, Done(finish, USAGE, REPORT, "")]


def whole(client: Client, events: Sequence[Event]) -> ClientAnswer:
    answer = client.dialect.whole(client.dialect.parse(client.request, INFO, id="id_1", tenant=""), INFO, created_unix_s=5)
    for event in events:
        answer.take(event)
    return client.whole(json.loads(json.dumps(answer.body())))


def streamed(client: Client, events: Sequence[Event], cut_bytes: Callable[[bytes], list[bytes]] = lambda sent: [sent]) -> ClientAnswer:
    stream = client.dialect.streamed(client.dialect.parse(client.request, INFO, id="id_1", tenant=""), INFO, created_unix_s=5)
    sent = b"".join(frame + stream.keepalive() for event in events[:-1] for frame in stream.frames(event))
    sent += b"".join(stream.frames(events[-1]))
    received = [event for event in SSEDecoder().iter_bytes(iter(cut_bytes(sent))) if event.data != "[DONE]"]
    values = [json.loads(event.data) for event in received]
    assert all(
        event.event in (None, value["type"]) for event, value in zip(received, values, strict=True) if event.event or "type" in value
    )
    return client.streamed(values)


@st.composite
def answers(draw: st.DrawFn, calls: CallFormat) -> str:
    """An answer with calls in this format, and with text that only looks like one."""
    call = st.text("ab\n🙂", max_size=9).map(lambda text: WRITERS[calls]("read", path=text))
    lead = draw(st.sampled_from(["", "Hm.</think>"]))
    return lead + "".join(draw(st.lists(st.one_of(call, SCRAPS, ODD), max_size=8)))


@st.composite
def cuts(draw: st.DrawFn, length: int) -> list[tuple[int, int]]:
    """Where a text of this length is cut."""
    positions = sorted(draw(st.lists(st.integers(0, length), max_size=8)))
    return list(zip([0, *positions], [*positions, length], strict=True))


@each_client
@given(st.data(), st.sampled_from(WAYS), st.booleans())
def test_any_answer_is_the_same_streamed_and_whole_however_it_is_cut(client: Client, data: Any, calls: CallFormat, opens: bool) -> None:
    answer = data.draw(answers(calls))
    answer_format = PLAIN if client.dialect is COMPLETIONS else AnswerFormat(THINK, calls)
    pieces = [answer[start:stop] for start, stop in data.draw(cuts(len(answer)))]

    def cut_bytes(sent: bytes) -> list[bytes]:
        return [sent[start:stop] for start, stop in data.draw(cuts(len(sent)))]

    expected = whole(client, events_of([answer], answer_format, "stop", opens=opens))
    assert streamed(client, events_of(pieces, answer_format, "stop", opens=opens), cut_bytes) == expected
    assert answer_format is not PLAIN or expected.text == answer


@each_client
def test_tokens_are_counted_right_also_where_an_answer_is_cut_off(client: Client) -> None:
    events = [QueuePosition(1), PROGRESS, Content("a"), Done("length", USAGE, REPORT, "")]
    for answer in (whole(client, events), streamed(client, events)):
        assert (answer.usage, answer.finish) == ((70, 30, 20, 5, 90), client.cut)
    assert USAGE.prompt_tokens == PROGRESS.total_tokens


@each_client
@pytest.mark.parametrize("calls", WAYS)
def test_nothing_certain_is_held_back_with_tools(client: Client, calls: CallFormat) -> None:
    """The client receives text and arguments as soon as they can be nothing else: at most a tag's length is held back."""
    text, argument = TEXT_CHAR * 200 * (not isinstance(calls, Llama)), ARGUMENT_CHAR * 200  # a call of Llama's is all of its answer
    answer_format = PLAIN if client.dialect is COMPLETIONS else AnswerFormat(THINK, calls)
    parser = AnswerParser(answer_format, TOOLS, partial(call_id, "job"), opens_reasoning=False, logprobs_of=no_logprobs)
    stream = client.dialect.streamed(client.dialect.parse(client.request, INFO, id="id_1", tenant=""), INFO, created_unix_s=5)
    sent = b"".join(stream.frames(PROGRESS)).decode()
    written = ""
    for char in text + WRITERS[calls]("read", path=argument) if answer_format is not PLAIN else text:
        written += char
        sent += b"".join(frame for piece in parser.push(char) for frame in stream.frames(piece)).decode()
        for filler in (TEXT_CHAR, ARGUMENT_CHAR):
            assert sent.count(filler) >= written.count(filler) - HELD_CHARS, written
    assert sent.count(ARGUMENT_CHAR) >= 200 * (answer_format is not PLAIN)
