import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.serve.asking import values
from tests.serve.engine_double import DONE, INFO, REPORT, SUGGESTED
from tests.serve.refusals import refusals

from forerun.errors import BadRequestError
from forerun.serve.anthropic import parse, parse_count
from forerun.serve.anthropic_answer import ParsedRequest, StreamedResponse, WholeResponse
from forerun.serve.fields import arguments_of
from forerun.serve.problems import problem_of
from forerun.values import CallArguments, CallEnd, CallStart, Chat, Content, Done, Event, PrefillProgress, QueuePosition, Reasoning, Usage

USER = {"role": "user", "content": "hello"}
TOOL = {"name": "read", "description": "Reads.", "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}}}
AS_CHAT = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": TOOL["input_schema"]}}
LATER = {"name": "fetch", "input_schema": {"type": "object"}, "defer_loading": True}
READ = PrefillProgress(4, 7, 3, None)
ANSWER: Sequence[Event] = (
    QueuePosition(1),
    READ,
    Reasoning("Look "),
    Reasoning("first."),
    Content("I "),
    Content("look."),
    CallStart(0, "call_1", "read"),
    CallArguments(0, '{"path": '),
    CallArguments(0, '"x"}'),
    CallEnd(0, True),
    CallStart(1, "call_2", "read"),
    CallArguments(1, "{}"),
    CallEnd(1, True),
    Done("calls", Usage(7, 3, 20, 2), REPORT, ""),
)
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def parsed(**body: Any) -> ParsedRequest:
    return parse({"messages": [USER], "max_tokens": 100} | body, INFO, id="msg_1", tenant="ann")


def prompt(**body: Any) -> Chat:
    chat = parsed(**body).job.prompt
    assert isinstance(chat, Chat)
    return chat


refusal = refusals(parsed)


def streamed(events: Sequence[Event], **body: Any) -> list[dict[str, Any]]:
    """The values of all frames; the event name of each is its type."""
    stream = StreamedResponse(parsed(**body), INFO, created_unix_s=5)
    return values(b"".join(frame for event in events for frame in stream.frames(event)).decode())


def whole(events: Sequence[Event], **body: Any) -> dict[str, Any]:
    answer = WholeResponse(parsed(**body), INFO, created_unix_s=5)
    for event in events:
        answer.take(event)
    return answer.body()


def put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that a client assembles from a stream."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(blocks)
                blocks.append(block | ({"input": ""} if block["type"] == "tool_use" else {}))
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": text}}:
                blocks[-1]["input"] += text
            case {"type": "content_block_delta", "delta": delta}:
                blocks[-1] |= {name: blocks[-1][name] + text for name, text in delta.items() if name != "type"}
    return [block | ({"input": arguments_of(block["input"])} if block["type"] == "tool_use" else {}) for block in blocks]


def test_what_is_left_out_is_the_models_default() -> None:
    job = parsed().job
    assert (job.id, job.tenant, job.max_tokens, job.stop, job.session, job.bank) == ("msg_1", "ann", 100, (), None, "use")
    assert (job.prompt, job.sampling) == (Chat((USER,), (), {}), SUGGESTED)
    assert not parsed().streams


def test_sampling_stops_and_session() -> None:
    job = parsed(temperature=0.2, top_k=40, top_p=0.9, stop_sequences=["\n\n"], forerun={"session": "s", "bank": "bypass"}).job
    assert (job.sampling.temperature, job.sampling.top_k, job.sampling.top_p) == (0.2, 40, 0.9)
    assert (job.stop, job.session, job.bank) == (("\n\n",), "s", "bypass")


@pytest.mark.parametrize("content", ["hello", [{"type": "text", "text": "hello"}], [{"type": "text", "text": t} for t in ("he", "llo")]])
def test_text_is_the_same_however_it_is_split(content: Any) -> None:
    cached = [block | {"cache_control": {"type": "ephemeral"}} for block in content] if isinstance(content, list) else content
    for each in (content, cached):
        assert prompt(messages=[{"role": "user", "content": each}], system=each).messages == ({"role": "system", "content": "hello"}, USER)


def test_claude_codes_billing_block_is_left_out_and_nothing_else() -> None:
    system = [
        {"type": "text", "text": text} for text in ("x-anthropic-billing-header: cc_version=2.1.332.ae8;", "You help.", "\nx-anthropic")
    ]
    assert prompt(system=system).messages[0] == {"role": "system", "content": "You help.\nx-anthropic"}
    assert prompt(system=system[:1]).messages == (USER,)


def test_messages_become_those_of_a_chat() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "read", "input": {"b": 1, "a": 2}}
    seen = prompt(
        messages=[
            USER,
            {"role": "system", "content": "Be brief."},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Look.", "signature": "x"}, {"type": "text", "text": "Yes"}, use],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                    {"type": "text", "text": "and?"},
                ],
            },
        ]
    ).messages
    call = {"id": "t1", "type": "function", "function": {"name": "read", "arguments": {"b": 1, "a": 2}}}
    assert seen == (
        USER,
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Yes", "reasoning_content": "Look.", "tool_calls": [call]},
        {"role": "tool", "content": "ab", "tool_call_id": "t1"},
        {"role": "tool", "content": "", "tool_call_id": "t2"},
        {"role": "user", "content": "and?"},
    )
    assert list(seen[2]["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]


def test_tools_keep_their_order_and_can_be_left_out() -> None:
    assert json.dumps(prompt(tools=[TOOL | {"cache_control": {}}]).tools) == json.dumps([AS_CHAT])
    assert prompt(tools=[TOOL], tool_choice={"type": "auto"}).tools == (AS_CHAT,)
    assert prompt(tools=[TOOL], tool_choice={"type": "none"}).tools == ()


def test_a_deferred_tool_is_declared_where_it_is_introduced() -> None:
    found = [{"type": "tool_reference", "tool_name": name} for name in ("fetch", "read")]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": found}]}
    chat = prompt(tools=[TOOL, LATER], messages=[USER, {"role": "assistant", "content": "x"}, result])
    assert (chat.tools, [tool["function"]["name"] for tool in chat.held_back]) == ((AS_CHAT,), ["fetch"])
    first, second = chat.messages[2]["content"].splitlines()
    assert json.loads(first)["function"]["name"] == "fetch"
    assert second == "read"


def test_thinking_and_effort_reach_the_template() -> None:
    assert prompt(thinking={"type": "disabled"}).template_args == {"enable_thinking": False}
    assert prompt(thinking={"type": "enabled", "budget_tokens": 2048}).template_args == {"enable_thinking": True}
    given = prompt(thinking={"type": "adaptive"}, output_config={"effort": "high"})
    assert given.template_args == {"enable_thinking": True, "reasoning_effort": "high"}


def test_unused_fields_are_named() -> None:
    block = {"type": "text", "text": "x", "cache_control": {}}
    given = parsed(
        metadata={"user_id": "me"},
        context_management={"edits": []},
        tool_choice={"type": "auto", "disable_parallel_tool_use": False},
        thinking={"type": "enabled", "budget_tokens": 2048},
        messages=[{"role": "user", "content": [block, block]}],
        tools=[TOOL | {"eager_input_streaming": True}],
    )
    assert given.ignored_fields == (
        "metadata",
        "context_management",
        "tools.eager_input_streaming",
        "messages.content.cache_control",
    )


@pytest.mark.parametrize(
    ("body", "field", "complaint"),
    [
        ({"max_tokens": None}, "max_tokens", "required"),
        ({"max_tokens": 1.5}, "max_tokens", "integer"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text", "string"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0]", "needs 'tool_use_id'"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "messages[0].content[0]", "cannot be in"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "user"),
        ({"tools": [{"name": "read"}]}, "tools[0].input_schema", "required"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type", "auto"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "object"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "not supported"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_0"}}, "thread", "not supported"),
        ({"compaction": {}}, "compaction", "not supported"),
        ({"thinking": {"type": "maybe"}}, "thinking.type", "enabled"),
        ({"stop_sequences": [5]}, "stop_sequences[0]", "string"),
        ({"system": [{"type": "tool_use", "id": "t", "name": "f"}]}, "system.content[0]", "cannot be in"),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(body: dict[str, Any], field: str, complaint: str) -> None:
    error = refusal(**body)
    assert error.param == field
    assert complaint in str(error)


def test_counting_needs_no_limit() -> None:
    assert parse_count({"messages": [USER], "system": "Be brief."}).messages == ({"role": "system", "content": "Be brief."}, USER)


def test_a_stream_has_every_event_that_clients_need() -> None:
    events = streamed(ANSWER)
    assert [event["type"] for event in events if event["type"] != "content_block_delta"] == [
        "ping",
        "message_start",
        "ping",
        *["content_block_start", "content_block_stop"] * 4,
        "message_delta",
        "message_stop",
    ]
    for event in events:
        if event["type"] != "ping":
            EVENTS.validate_python(event)
    assert events[1]["message"]["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
    }
    assert events[2]["forerun"] == {"done_tokens": 4, "total_tokens": 7, "reused_tokens": 3, "remaining_s": None}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert (events[-2]["usage"]["output_tokens"], events[-2]["usage"]["output_tokens_details"]) == (20, {"thinking_tokens": 2})
    assert events[-2]["forerun"]["source"] == "ram"


def test_a_stream_equals_the_whole_answer() -> None:
    body = whole(ANSWER)
    Message.model_validate(body)
    assert put_together(streamed(ANSWER)) == body["content"]
    assert [block["type"] for block in body["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert body["content"][2] == {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "x"}}
    assert body["forerun"]["ignored_fields"] == []


PIECES = st.lists(
    st.one_of(
        st.builds(Reasoning, st.text(min_size=1, max_size=3)),
        st.builds(Content, st.text(min_size=1, max_size=3)),
        st.text(max_size=3).map(lambda text: (CallStart(0, "c", "f"), CallArguments(0, json.dumps({"a": text})), CallEnd(0, True))),
    ),
    max_size=8,
).map(lambda found: [piece for each in found for piece in (each if isinstance(each, tuple) else (each,))])


@settings(deadline=None)
@given(PIECES, st.booleans())
def test_any_answer_is_the_same_streamed_and_whole(pieces: list[Event], shown: bool) -> None:
    thinking = {} if shown else {"thinking": {"type": "adaptive", "display": "omitted"}}
    assert put_together(streamed([READ, *pieces, DONE], **thinking)) == whole([READ, *pieces, DONE], **thinking)["content"]


def test_hidden_thoughts_are_sent_back_in_their_signature() -> None:
    hidden = {"thinking": {"type": "adaptive", "display": "omitted"}}
    content = whole([READ, Reasoning("Look ü"), Content("Yes"), DONE], **hidden)["content"]
    assert content[0]["thinking"] == ""
    assert "Look" not in json.dumps(content)
    message = prompt(messages=[USER, {"role": "assistant", "content": content}, USER]).messages[1]
    assert message == {"role": "assistant", "content": "Yes", "reasoning_content": "Look ü"}


def test_other_signatures_are_ignored() -> None:
    block = {"type": "thinking", "thinking": "shown"}
    for each in (block, block | {"signature": "mNTzAjr/bmn="}):
        assert prompt(messages=[USER, {"role": "assistant", "content": [each]}, USER]).messages[1]["reasoning_content"] == "shown"


@pytest.mark.parametrize("signature", ["forerun:!", "forerun:////", "forerun:é", "forerun:abc"])
def test_a_damaged_signature_is_refused(signature: str) -> None:
    block = {"type": "thinking", "thinking": "", "signature": signature}
    assert "damaged" in str(refusal(messages=[USER, {"role": "assistant", "content": [block]}, USER]))


@pytest.mark.parametrize(
    ("done", "reason", "sequence"),
    [
        (Done("stop", Usage(7, 3, 2, 0), REPORT, ""), "end_turn", None),
        (Done("stop", Usage(7, 3, 2, 0), REPORT, "###"), "stop_sequence", "###"),
        (Done("length", Usage(7, 3, 100, 0), REPORT, ""), "max_tokens", None),
        (Done("length", Usage(7, 3, 50, 0), REPORT, ""), "model_context_window_exceeded", None),
        (Done("calls", Usage(7, 3, 2, 0), REPORT, ""), "tool_use", None),
        (Done("loop", Usage(7, 3, 2, 0), REPORT, ""), "max_tokens", None),
    ],
)
def test_why_an_answer_ended(done: Done, reason: str, sequence: str | None) -> None:
    assert (whole([READ, done])["stop_reason"], whole([READ, done])["stop_sequence"]) == (reason, sequence)
    assert streamed([READ, done])[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_call_that_was_cut_off_has_no_arguments() -> None:
    cut = [
        READ,
        CallStart(0, "c", "read"),
        CallArguments(0, '{"path": "x'),
        CallEnd(0, False),
        Done("length", Usage(7, 3, 100, 0), REPORT, ""),
    ]
    assert whole(cut)["content"] == [{"type": "tool_use", "id": "c", "name": "read", "input": {}}]
    assert whole(cut)["stop_reason"] == "max_tokens"


def test_keepalives_and_errors() -> None:
    stream = StreamedResponse(parsed(), INFO, created_unix_s=5)
    assert stream.keepalive() == b'event: ping\ndata: {"type":"ping"}\n\n'
    failed = stream.failed(problem_of(BadRequestError("no")))
    assert failed == b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"no"}}\n\n'
