import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.serve.asking import values
from tests.serve.engine_double import DONE, INFO, REPORT, SUGGESTED
from tests.serve.refusals import refusals
from tests.serve.test_anthropic import ANSWER, PIECES

from forerun.errors import BusyError
from forerun.serve.openai_responses import parse
from forerun.serve.openai_responses_answer import ParsedRequest, StreamedResponse, WholeResponse
from forerun.serve.problems import problem_of
from forerun.values import (
    CallArguments,
    CallEnd,
    CallStart,
    Chat,
    Content,
    Done,
    Event,
    LogprobsRequest,
    PrefillProgress,
    Reasoning,
    TokenLogprob,
    TopToken,
    Usage,
)

USER = {"role": "user", "content": "hello"}
READ = PrefillProgress(4, 7, 3, None)
SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}
FUNCTION = {"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": False}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Patches.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
}
AGENTS = {"type": "namespace", "name": "agents", "description": "x", "tools": [{"type": "function", "name": "spawn", "parameters": SCHEMA}]}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": SCHEMA}
WEB = {"type": "web_search", "external_web_access": True}
TOOLS = [FUNCTION, PATCH, AGENTS, SEARCH, WEB]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def parsed(**body: Any) -> ParsedRequest:
    return parse({"input": "hello"} | body, INFO, id="resp_1", tenant="ann")


def prompt(**body: Any) -> Chat:
    chat = parsed(**body).job.prompt
    assert isinstance(chat, Chat)
    return chat


refusal = refusals(parsed)


def streamed(events: Sequence[Event], **body: Any) -> list[dict[str, Any]]:
    """The values of all frames, each valid as the client's library has it, and numbered without a gap."""
    stream = StreamedResponse(parsed(**body), INFO, created_unix_s=5)
    sent = values(b"".join(frame for event in events for frame in stream.frames(event)).decode())
    for event in sent:
        EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    return sent


def whole(events: Sequence[Event], **body: Any) -> dict[str, Any]:
    answer = WholeResponse(parsed(**body), INFO, created_unix_s=5)
    for event in events:
        answer.take(event)
    body: dict[str, Any] = json.loads(json.dumps(answer.body()))
    return body


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_what_is_left_out_is_the_models_default() -> None:
    job = parsed().job
    assert (job.id, job.tenant, job.max_tokens, job.stop, job.session, job.bank) == ("resp_1", "ann", None, (), None, "use")
    assert (job.prompt, job.sampling) == (Chat((USER,), (), {}), SUGGESTED)
    assert not parsed().streams


@pytest.mark.parametrize(
    "given",
    [
        "hello",
        [USER],
        [{"type": "message", "id": "m1", "status": "completed", **USER}],
        [{"role": "user", "content": [{"type": "input_text", "text": text} for text in ("he", "llo")]}],
    ],
)
def test_input_is_the_same_however_it_is_split(given: Any) -> None:
    assert prompt(input=given) == Chat((USER,), (), {})


def test_items_become_messages() -> None:
    seen = prompt(
        instructions="Be brief.",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Use tools."}]},
            USER,
            {
                "type": "reasoning",
                "id": "r1",
                "summary": [{"type": "summary_text", "text": "Look."}],
                "content": None,
                "encrypted_content": "x",
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes", "annotations": []}]},
            {"type": "function_call", "id": "f1", "call_id": "c1", "name": "read", "arguments": '{"b": 1, "a": 2}', "status": "completed"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
            {"type": "function_call_output", "id": "o1", "call_id": "c1", "output": [{"type": "input_text", "text": "text"}]},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Good."}]},
            {"type": "function_call", "call_id": "c3", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c3", "output": ""},
        ],
    ).messages
    read = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"b": 1, "a": 2}'}}
    patch = {"id": "c2", "type": "function", "function": {"name": "apply_patch", "arguments": {"input": "*** Begin"}}}
    again = {"id": "c3", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    assert seen == (
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Use tools."},
        USER,
        {"role": "assistant", "content": "Yes", "reasoning_content": "Look.", "tool_calls": [read, patch]},
        {"role": "tool", "content": "text", "tool_call_id": "c1"},
        {"role": "tool", "content": "done", "tool_call_id": "c2"},
        {"role": "assistant", "content": "", "reasoning_content": "Good.", "tool_calls": [again]},
        {"role": "tool", "content": "", "tool_call_id": "c3"},
    )


def test_turns_that_follow_each_other_stay_apart() -> None:
    turns = [{"role": "assistant", "content": text} for text in ("one", "two")]
    assert prompt(input=[USER, *turns, USER]).messages == (USER, *turns, USER)
    thoughts = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]} for text in ("a", "b")]
    assert [each.get("reasoning_content") for each in prompt(input=[USER, *thoughts]).messages] == [None, "a", "b"]


def test_tools_become_functions_in_their_order() -> None:
    given = parsed(tools=TOOLS)
    assert [tool["function"]["name"] for tool in prompt(tools=TOOLS).tools] == ["read", "apply_patch", "spawn", "tool_search"]
    assert json.dumps(prompt(tools=TOOLS).tools[0]["function"]["parameters"]) == json.dumps(SCHEMA)
    assert given.ignored_fields == ("tools.web_search",)
    assert prompt(tools=TOOLS, tool_choice="none").tools == ()


def test_found_tools_are_declared_where_they_are_found() -> None:
    call = {"type": "tool_search_call", "call_id": "c1", "arguments": {"query": "agents"}, "execution": "client"}
    found = {"type": "tool_search_output", "call_id": "c1", "tools": [AGENTS], "execution": "client"}
    chat = prompt(tools=[SEARCH], input=[USER, call, found])
    assert len(chat.tools) == 1
    assert json.loads(chat.messages[2]["content"])["function"]["name"] == "spawn"
    assert [tool["function"]["name"] for tool in chat.held_back] == ["spawn"]
    (item,) = whole(call_of("spawn", "{}"), tools=[SEARCH], input=[USER, call, found])["output"]
    assert item["namespace"] == "agents"


def test_unused_fields_are_named() -> None:
    given = parsed(
        include=["reasoning.encrypted_content"], store=True, client_metadata={"a": 1}, text={"verbosity": "low"}, reasoning={"context": "x"}
    )
    assert given.ignored_fields == (
        *("client_metadata", "include.reasoning.encrypted_content"),
        *("reasoning.context", "text.verbosity"),
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "forerun": {"bank": "bypass"}}, "background"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": 5}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [AGENTS | {"tools": ["spawn"]}]}, "tools[0]"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(body: dict[str, Any], field: str) -> None:
    assert refusal(**body).param == field


def test_tool_search_has_one_name() -> None:
    assert prompt(tools=[SEARCH | {"name": ["x"]}]).tools[0]["function"]["name"] == "tool_search"


def test_a_stream_has_every_event_that_clients_need() -> None:
    events = streamed(ANSWER, reasoning={"summary": "auto"}, tools=[FUNCTION])
    assert kinds(events) == [
        "created",
        "in_progress",
        "in_progress",
        *["output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.delta"],
        *["reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"],
        *["output_item.added", "content_part.added", "output_text.delta", "output_text.delta"],
        *["output_text.done", "content_part.done", "output_item.done"],
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"],
        *["function_call_arguments.done", "output_item.done"],
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
        "completed",
    ]
    assert events[2]["forerun"] == {"done_tokens": 4, "total_tokens": 7, "reused_tokens": 3, "remaining_s": None}
    usage = events[-1]["response"]["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["total_tokens"]) == (7, 3, 27)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}
    assert events[-1]["response"]["forerun"]["source"] == "ram"


def test_thoughts_are_content_unless_a_summary_is_requested() -> None:
    (item,) = whole([READ, Reasoning("Hm"), DONE])["output"]
    assert (item["summary"], item["content"]) == ([], [{"type": "reasoning_text", "text": "Hm"}])
    assert "reasoning_text.delta" in kinds(streamed([READ, Reasoning("Hm"), DONE]))
    (item,) = whole([READ, Reasoning("Hm"), DONE], reasoning={"summary": "auto"})["output"]
    assert (item["summary"], "content" in item) == ([{"type": "summary_text", "text": "Hm"}], False)


def call_of(name: str, arguments: str, *, is_complete: bool = True) -> list[Event]:
    return [READ, CallStart(0, "c1", name), CallArguments(0, arguments[:4]), CallArguments(0, arguments[4:]), CallEnd(0, is_complete), DONE]


def test_calls_have_the_form_of_their_tools() -> None:
    (item,) = whole(call_of("apply_patch", '{"input": "*** Begin"}'), tools=TOOLS)["output"]
    assert (item["type"], item["name"], item["input"], item["call_id"]) == ("custom_tool_call", "apply_patch", "*** Begin", "c1")
    events = kinds(streamed(call_of("apply_patch", '{"input": "*** Begin"}'), tools=TOOLS))
    assert events[2:-1] == ["output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"]
    (item,) = whole(call_of("spawn", '{"a": 1}'), tools=TOOLS)["output"]
    assert (item["type"], item["namespace"], item["arguments"]) == ("function_call", "agents", '{"a": 1}')
    (item,) = whole(call_of("tool_search", '{"query": "x"}'), tools=TOOLS)["output"]
    assert (item["type"], item["execution"], item["arguments"]) == ("tool_search_call", "client", {"query": "x"})
    (item,) = whole(call_of("unknown", "{}"), tools=TOOLS)["output"]
    assert (item["type"], item["name"]) == ("function_call", "unknown")


def test_a_call_that_was_cut_off_loses_nothing() -> None:
    (item,) = whole(call_of("read", '{"path": "x', is_complete=False), tools=TOOLS)["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"path": "x')
    (item,) = whole(call_of("apply_patch", '{"input": "*** B', is_complete=False), tools=TOOLS)["output"]
    assert (item["status"], item["input"]) == ("incomplete", '{"input": "*** B')


@settings(deadline=None)
@given(PIECES)
def test_any_answer_is_the_same_streamed_and_whole(pieces: list[Event]) -> None:
    events, body = streamed([READ, *pieces, DONE]), whole([READ, *pieces, DONE])
    Response.model_validate(body)
    assert events[-1]["response"] == body
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == body["output"]
    deltas: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
    contents = {item["id"]: item.get("arguments") or (item.get("content") or [{"text": ""}])[0]["text"] for item in body["output"]}
    assert {id: deltas.get(id, "") for id in contents} == contents


@pytest.mark.parametrize("finish", ["length", "loop"])
def test_an_answer_that_was_cut_off_is_incomplete(finish: Any) -> None:
    cut = [READ, Content("Ye"), Done(finish, Usage(7, 3, 2, 0), REPORT, "")]
    body = whole(cut)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (body["output"][0]["status"], body["forerun"]["finish"]) == ("incomplete", finish)
    assert kinds(streamed(cut))[-1] == "incomplete"


def test_a_response_repeats_fields_of_the_request() -> None:
    body = whole([READ, DONE], instructions="Be brief.", metadata={"k": "v"}, temperature=0.5, max_output_tokens=9)
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    repeating = {"text": {"format": form}, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    response = whole([READ, DONE], **repeating)
    Response.model_validate(response)
    assert [response[name] for name in ("text", "tool_choice", "parallel_tool_calls")] == [{"format": form}, "required", False]
    repeated = ("id", "instructions", "metadata", "temperature", "max_output_tokens", "store", "previous_response_id")
    assert [body[name] for name in repeated] == ["resp_1", "Be brief.", {"k": "v"}, 0.5, 9, True, None]


def test_keepalives_are_events() -> None:
    stream = StreamedResponse(parsed(), INFO, created_unix_s=5)
    assert kinds(values(stream.keepalive().decode())) == ["created", "in_progress"]
    assert kinds(values(stream.keepalive().decode())) == ["in_progress"]


def test_an_error_ends_a_stream_as_a_failed_response() -> None:
    events = values(StreamedResponse(parsed(), INFO, created_unix_s=5).failed(problem_of(BusyError("stopping", retry_after_s=1))).decode())
    assert kinds(events) == ["created", "failed"]
    assert events[1]["response"]["error"] == {"code": "server_error", "message": "stopping"}
    EVENTS.validate_python(events[1])


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, None),
        ({"include": ["message.output_text.logprobs"]}, LogprobsRequest(0, of_prompt=False)),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 4}, LogprobsRequest(4, of_prompt=False)),
        ({"top_logprobs": 2}, LogprobsRequest(2, of_prompt=False)),
        ({"include": ["reasoning.encrypted_content"]}, None),
    ],
)
def test_logprobs_are_requested(body: dict[str, Any], found: LogprobsRequest | None) -> None:
    assert parsed(**body).job.logprobs == found


def test_tokens_have_logprobs() -> None:
    tokens = [TokenLogprob(b"Y", -0.25, (TopToken(b"Y", -0.25),)), TokenLogprob(b"es", -1.0, ())]
    answer = (READ, Reasoning("Hm"), Content("Y", (tokens[0],)), Content("es", (tokens[1],)), DONE)
    events = streamed(answer, top_logprobs=1)
    first = {"token": "Y", "bytes": [89], "logprob": -0.25, "top_logprobs": [{"token": "Y", "bytes": [89], "logprob": -0.25}]}
    second = {"token": "es", "bytes": [101, 115], "logprob": -1.0, "top_logprobs": []}
    assert [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"] == [[first], [second]]
    assert [event["logprobs"] for event in events if event["type"] == "response.output_text.done"] == [[first, second]]
    response = whole(answer, top_logprobs=1)
    Response.model_validate(response)
    assert response["output"][1]["content"][0]["logprobs"] == [first, second]
    assert events[-1]["response"]["output"] == response["output"]
