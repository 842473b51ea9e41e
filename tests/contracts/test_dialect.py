"""What every dialect must do with an answer: say the same streamed and whole, wherever text and bytes are cut, and count its tokens right.

Each dialect's frames are read by a client's own decoder, and put together as its clients do it.
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

from forerun.serve.app import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from forerun.serve.dialect import Dialect
from forerun.text.answer_parser import PLAIN, AnswerFormat, AnswerParser, Calls
from forerun.text.calls.json_calls import Llama
from forerun.text.prompt import call_id
from forerun.text.reasoning import THINK
from forerun.values import Content, Done, Event, Finish, PrefillProgress, QueuePosition, Usage

Value = dict[str, Any]
MESSAGE_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
RESPONSE_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
READING = PrefillProgress(4, 70, 30, None)
USAGE = Usage(70, 30, 20, 5)
TEXT_CHAR, ARGUMENT_CHAR, HELD_CHARS = "Q", "Z", len("</parameter>")
ODD = st.sampled_from(["\u2028", "\x85", "\r\n", "\r", "🙂", "data: x\n\n", "\x00"])


@dataclass(frozen=True, slots=True)
class Told:
    """What a client makes of an answer. usage: tokens of the prompt, known, written, thought, and in all."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, str, str], ...]
    finish: str
    usage: tuple[int, ...]


def openai_usage(usage: Value) -> tuple[int, ...]:
    known, thought = usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], known, usage["completion_tokens"], thought, usage["total_tokens"]


def chat_whole(body: Value) -> Told:
    choice = ChatCompletion.model_validate(body, strict=True).choices[0]
    calls = tuple(
        (each.id, each.function.name, each.function.arguments) for each in choice.message.tool_calls or () if each.type == "function"
    )
    thought = (choice.message.model_extra or {}).get("reasoning_content", "")
    return Told(thought, choice.message.content or "", calls, choice.finish_reason, openai_usage(body["usage"]))


def chat_streamed(values: list[Value]) -> Told:
    thought, text, calls, finish = "", "", dict[int, list[str]](), ""
    for chunk in values:
        for choice in ChatCompletionChunk.model_validate(chunk, strict=True).choices:
            finish = choice.finish_reason or finish
            text += choice.delta.content or ""
            thought += (choice.delta.model_extra or {}).get("reasoning_content", "")
            for call in choice.delta.tool_calls or []:
                assert call.function
                calls.setdefault(call.index, [call.id or "", call.function.name or "", ""])[2] += call.function.arguments or ""
    return Told(thought, text, tuple((a, b, c) for a, b, c in calls.values()), finish, openai_usage(values[-1]["usage"]))


def completions_whole(body: Value) -> Told:
    choice = Completion.model_validate(body, strict=True).choices[0]
    return Told("", choice.text, (), choice.finish_reason, openai_usage(body["usage"]))


def completions_streamed(values: list[Value]) -> Told:
    choices = [choice for chunk in values for choice in chunk["choices"]]
    return Told("", "".join(each["text"] for each in choices), (), choices[-1]["finish_reason"], openai_usage(values[-1]["usage"]))


def blocks(content: list[Value], reason: str, usage: Value) -> Told:
    thought = "".join(block["thinking"] for block in content if block["type"] == "thinking")
    text = "".join(block["text"] for block in content if block["type"] == "text")
    calls = tuple((block["id"], block["name"], json.dumps(block["input"])) for block in content if block["type"] == "tool_use")
    assert usage["cache_creation_input_tokens"] == 0
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    written, thinking = usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"]
    return Told(thought, text, calls, reason, (prompt, usage["cache_read_input_tokens"], written, thinking, prompt + written))


def messages_whole(body: Value) -> Told:
    Message.model_validate(body, strict=True)
    return blocks(body["content"], body["stop_reason"], body["usage"])


def messages_streamed(values: list[Value]) -> Told:
    for value in values:
        if value["type"] != "ping":
            MESSAGE_EVENTS.validate_python(value)
    ending = next(value for value in values if value["type"] == "message_delta")
    return blocks(put_together(values), ending["delta"]["stop_reason"], ending["usage"])


def responses_whole(body: Value) -> Told:
    response = Response.model_validate(body)
    items = response.output
    thought = "".join(part.text for item in items if item.type == "reasoning" for part in item.content or ())
    calls = tuple((item.call_id, item.name, item.arguments) for item in items if item.type == "function_call")
    assert response.usage
    known, thinking = response.usage.input_tokens_details.cached_tokens, response.usage.output_tokens_details.reasoning_tokens
    usage = (response.usage.input_tokens, known, response.usage.output_tokens, thinking, response.usage.total_tokens)
    return Told(thought, response.output_text, calls, response.status or "", usage)


def responses_streamed(values: list[Value]) -> Told:
    """From the items that are done, as Codex takes it."""
    for value in values:
        RESPONSE_EVENTS.validate_python(value)
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    items = [value["item"] for value in values if value["type"] == "response.output_item.done"]
    return responses_whole(values[-1]["response"] | {"output": items})


@dataclass(frozen=True, slots=True)
class Client:
    """A dialect, a request in it, what clients make of its answers, and how it names an answer that was cut off."""

    dialect: Dialect[Any]
    request: Value
    whole: Callable[[Value], Told]
    streamed: Callable[[list[Value]], Told]
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
    """The events of an answer that the model writes in these pieces."""
    parts = AnswerParser(answer_format, TOOLS, partial(call_id, "job"), opens_reasoning=opens, tell=no_logprobs)
    pieces = [piece for chunk in chunks for piece in parts.push(chunk)] + parts.flush()
    return [QueuePosition(1), READING, *pieces, Done(finish, USAGE, REPORT, "")]


def whole(client: Client, events: Sequence[Event]) -> Told:
    answer = client.dialect.whole(client.dialect.parse(client.request, INFO, id="id_1", tenant=""), INFO, created_unix_s=5)
    for event in events:
        answer.take(event)
    return client.whole(json.loads(json.dumps(answer.body())))


def streamed(client: Client, events: Sequence[Event], cut_bytes: Callable[[bytes], list[bytes]] = lambda sent: [sent]) -> Told:
    stream = client.dialect.streamed(client.dialect.parse(client.request, INFO, id="id_1", tenant=""), INFO, created_unix_s=5)
    sent = b"".join(frame + stream.keepalive() for event in events[:-1] for frame in stream.frames(event))
    sent += b"".join(stream.frames(events[-1]))
    told = [event for event in SSEDecoder().iter_bytes(iter(cut_bytes(sent))) if event.data != "[DONE]"]
    values = [json.loads(event.data) for event in told]
    assert all(event.event in (None, value["type"]) for event, value in zip(told, values, strict=True) if event.event or "type" in value)
    return client.streamed(values)


@st.composite
def answers(draw: st.DrawFn, calls: Calls) -> str:
    """An answer with calls as this model writes them, and with what only looks like one."""
    call = st.text("ab\n🙂", max_size=9).map(lambda text: WRITERS[calls]("read", path=text))
    lead = draw(st.sampled_from(["", "Hm.</think>"]))
    return lead + "".join(draw(st.lists(st.one_of(call, SCRAPS, ODD), max_size=8)))


@st.composite
def cuts(draw: st.DrawFn, length: int) -> list[tuple[int, int]]:
    """Where a text of this length is cut."""
    places = sorted(draw(st.lists(st.integers(0, length), max_size=8)))
    return list(zip([0, *places], [*places, length], strict=True))


@each_client
@given(st.data(), st.sampled_from(WAYS), st.booleans())
def test_any_answer_is_the_same_streamed_and_whole_however_it_is_cut(client: Client, data: Any, calls: Calls, opens: bool) -> None:
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
    events = [QueuePosition(1), READING, Content("a"), Done("length", USAGE, REPORT, "")]
    for told in (whole(client, events), streamed(client, events)):
        assert (told.usage, told.finish) == ((70, 30, 20, 5, 90), client.cut)
    assert USAGE.prompt_tokens == READING.total_tokens


@each_client
@pytest.mark.parametrize("calls", WAYS)
def test_nothing_is_held_back_while_tools_are_there(client: Client, calls: Calls) -> None:
    """What was written is with the client as soon as it can be nothing else: all but a tag's length of a text and of an argument."""
    text, argument = TEXT_CHAR * 200 * (not isinstance(calls, Llama)), ARGUMENT_CHAR * 200  # a call of Llama's is all of its answer
    answer_format = PLAIN if client.dialect is COMPLETIONS else AnswerFormat(THINK, calls)
    parts = AnswerParser(answer_format, TOOLS, partial(call_id, "job"), opens_reasoning=False, tell=no_logprobs)
    stream = client.dialect.streamed(client.dialect.parse(client.request, INFO, id="id_1", tenant=""), INFO, created_unix_s=5)
    sent = b"".join(stream.frames(READING)).decode()
    written = ""
    for char in text + WRITERS[calls]("read", path=argument) if answer_format is not PLAIN else text:
        written += char
        sent += b"".join(frame for piece in parts.push(char) for frame in stream.frames(piece)).decode()
        for snapshot in (TEXT_CHAR, ARGUMENT_CHAR):
            assert sent.count(snapshot) >= written.count(snapshot) - HELD_CHARS, written
    assert sent.count(ARGUMENT_CHAR) >= 200 * (answer_format is not PLAIN)
