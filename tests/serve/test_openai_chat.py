import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.serve.asking import values
from tests.serve.engine_double import DONE, INFO, REPORT, SUGGESTED
from tests.serve.refusals import refusals

import forerun
from forerun.serve.openai_chat import parse
from forerun.serve.openai_choices import ParsedRequest, StreamedResponse, WholeResponse
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
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
    QueuePosition,
    Reasoning,
    TokenLogprob,
    TopToken,
    Usage,
)

REQUESTS = Path(__file__).parent / "requests"
USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"z": 1, "a": 2}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}}


def parsed(**body: Any) -> ParsedRequest:
    return parse({"messages": [USER]} | body, INFO, id="chatcmpl-1", tenant="ann")


def prompt(**body: Any) -> Chat:
    chat = parsed(**body).jobs[0].prompt
    assert isinstance(chat, Chat)
    return chat


refusal = refusals(parsed)


def test_what_is_left_out_is_the_models_default() -> None:
    job = parsed().jobs[0]
    assert job.sampling == SUGGESTED
    assert (job.id, job.tenant, job.max_tokens, job.stop, job.session, job.bank) == ("chatcmpl-1", "ann", None, (), None, "use")
    assert job.prompt == Chat((USER,), (), {})
    assert not parsed().streams
    assert parsed(stream=None, temperature=None, tools=None, stop=None, forerun=None) == parsed()


def test_sampling() -> None:
    given = {"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": -3, "presence_penalty": 1, "frequency_penalty": -1}
    sampling = parsed(**given, repetition_penalty=1.1, logit_bias={"12": -100}).jobs[0].sampling
    assert {name: getattr(sampling, name) for name in given} == given
    assert (sampling.repetition_penalty, sampling.logit_bias) == (1.1, {12: -100})
    assert parsed(top_k=-1).jobs[0].sampling.top_k == 0


def test_limits_and_stops() -> None:
    assert parsed(max_tokens=5).jobs[0].max_tokens == 5
    assert parsed(max_tokens=5, max_completion_tokens=6).jobs[0].max_tokens == 6
    assert parsed(stop="a").jobs[0].stop == ("a",)
    assert parsed(stop=["a", "b"]).jobs[0].stop == ("a", "b")


def test_session_and_bank() -> None:
    job = parsed(forerun={"session": "work", "bank": "bypass"}).jobs[0]
    assert (job.session, job.bank) == ("work", "bypass")


@pytest.mark.parametrize(
    "content", ["hello", [{"type": "text", "text": "hello"}], [{"type": "text", "text": t} for t in ("he", "l", "lo")]]
)
def test_text_is_the_same_however_it_is_split(content: Any) -> None:
    assert prompt(messages=[{"role": "user", "content": content}]) == Chat((USER,), (), {})


def test_messages_reach_the_template() -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "reasoning_content": "Look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "text"},
    ]
    seen = prompt(messages=messages).messages
    assert seen[0] == {"role": "system", "content": "Be brief."}
    assert seen[2] == {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [CALL]}
    assert seen[3] == {"role": "tool", "content": "text", "tool_call_id": "c1"}


def test_reasoning_has_two_names() -> None:
    messages = [USER, {"role": "assistant", "content": "Yes.", "reasoning": "Look."}]
    assert prompt(messages=messages).messages[1]["reasoning_content"] == "Look."


def test_tools_keep_their_order_and_can_be_left_out() -> None:
    assert json.dumps(prompt(tools=[TOOL]).tools) == json.dumps([TOOL])
    assert prompt(tools=[TOOL], tool_choice="auto").tools == (TOOL,)
    assert prompt(tools=[TOOL], tool_choice="none").tools == ()


def test_template_arguments() -> None:
    args = prompt(chat_template_kwargs={"a": 1, "enable_thinking": True}, enable_thinking=False, reasoning_effort="low").template_args
    assert args == {"a": 1, "enable_thinking": False, "reasoning_effort": "low"}


def test_unknown_fields_are_named() -> None:
    message = USER | {"cache_control": {}, "refusal": None}
    given = parsed(user="me", store=False, metadata=None, messages=[message, message], stream_options={"include_usage": True, "x": 1})
    assert given.ignored_fields == ("user", "store", "stream_options.x", "messages.cache_control")
    assert given.includes_usage


NEUTRAL = {
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "typical_p": 1.0,
    "functions": [],
    "function_call": "none",
    "min_tokens": 0,
}


def test_unsupported_fields_without_effect_are_accepted() -> None:
    assert parsed(**NEUTRAL) == parsed()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("logprobs", 1),
        ("top_logprobs", 3),
        ("top_logprobs", 21),
        ("response_format", "json"),
        ("parallel_tool_calls", "no"),
        ("reasoning", "high"),
        ("functions", [{"name": "f"}]),
        ("modalities", ["text", "audio"]),
        ("guided_json", 5),
        ("guided_json", "{"),
        ("guided_choice", "yes"),
        ("structured_outputs", "json"),
        ("grammar", {"type": "json"}),
        ("max_thinking_tokens", "9"),
        ("stop_token_ids", [3]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "read"}}),
        ("temperature", -1),
        ("temperature", "0.5"),
        ("temperature", True),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("seed", "x"),
        ("seed", 1 << 70),
        ("presence_penalty", 3),
        ("repetition_penalty", -1),
        ("repetition_penalty", False),
        ("max_tokens", "5"),
        ("max_completion_tokens", 1.5),
        ("stop", [5]),
        ("stop", ["x"] * 65),
        ("stop", 5),
        ("stream", "yes"),
        ("stream", 1),
        ("messages", []),
        ("messages", "hello"),
        ("tools", {}),
        ("model", 5),
        ("enable_thinking", "no"),
        ("chat_template_kwargs", []),
        ("forerun", "bypass"),
    ],
)
def test_a_wrong_value_is_named(field: str, value: Any) -> None:
    error = refusal(**{field: value})
    assert (error.param or "").split("[")[0] == field
    assert field in str(error)


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("messages[0].role", {"messages": [{"role": "nobody", "content": "x"}]}),
        ("messages[0].role", {"messages": [{"content": "x"}]}),
        ("messages[1].content", {"messages": [USER, {"role": "user"}]}),
        ("messages[1].content", {"messages": [USER, {"role": "tool", "content": 5}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": [{"type": 5}]}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}),
        ("messages[0].tool_calls[0]", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1, "arguments": ""}}]}]}),
        ("messages[0].tool_calls[0]", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}]}),
        ("messages[0].tool_calls", {"messages": [USER | {"tool_calls": [CALL]}]}),
        ("messages[0].tool_calls", {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c1", "tool_calls": [CALL]}]}),
        ("tools[0]", {"tools": [{"type": 5}]}),
        ("tools[0]", {"tools": [{"type": "function", "function": {}}]}),
        ("tools[0]", {"tools": [{"type": "custom", "function": {"name": "f"}}]}),
        ("forerun.break_loops", {"forerun": {"break_loops": "yes"}}),
        ("forerun.cache", {"forerun": {"cache": 1}}),
        ("forerun.bank", {"forerun": {"bank": "off"}}),
        ("forerun.session", {"forerun": {"session": ""}}),
        ("stream_options.include_usage", {"stream_options": {"include_usage": "yes"}}),
        ("logit_bias.x.[key]", {"logit_bias": {"x": 1}}),
        ("logit_bias.1", {"logit_bias": {"1": 101}}),
    ],
)
def test_a_wrong_value_inside_is_named(param: str, body: dict[str, Any]) -> None:
    assert refusal(**body).param == param


IGNORED = {
    "opencode-title": (),
    "opencode-turn-3": (),
    "pi-turn-4": ("store",),
    "pi-turn-5": ("store",),
    "pi-second-prompt": ("store",),
    "aider": (),
    "openai-sdk": (),
    "openai-sdk-sampling": ("user",),
}


def recorded(name: str) -> ParsedRequest:
    return parse(json.loads((REQUESTS / f"{name}.json").read_text()), INFO, id="1", tenant="")


@pytest.mark.parametrize("name", [path.stem for path in sorted(REQUESTS.glob("*.json"))])
def test_requests_of_real_clients_are_understood(name: str) -> None:
    assert recorded(name).ignored_fields == IGNORED[name]


def test_a_clients_next_turn_begins_with_the_tokens_of_the_last() -> None:
    folder = Path(forerun.__file__).parent / "data" / "demo-model"
    prompter = Prompter(Tokenizer.load(folder), Template.load(folder))
    turns = [prompter.encode(recorded(name).jobs[0].prompt, tenant="") for name in ("pi-turn-4", "pi-turn-5", "pi-second-prompt")]
    for earlier, later in pairwise(turns):
        assert 1000 < earlier.message_end < len(earlier.tokens)
        assert later.tokens[: earlier.message_end] == earlier.tokens[: earlier.message_end]


def streamed(given: ParsedRequest, *events: Event) -> list[bytes]:
    stream = StreamedResponse(given, INFO, created_unix_s=5)
    return [frame for event in events for frame in stream.frames(event)]


def chunks(lines: list[bytes]) -> list[Any]:
    return values(b"".join(lines).decode())


def deltas(lines: list[bytes]) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(lines)]


def whole(given: ParsedRequest, *events: Event) -> dict[str, Any]:
    answer = WholeResponse(given, INFO, created_unix_s=5)
    for event in events:
        answer.take(event)
    return answer.body()


CALLS = (
    CallStart(0, "a", "read"),
    CallArguments(0, '{"path": '),
    CallArguments(0, '"x"}'),
    CallEnd(0, is_complete=True),
    CallStart(1, "b", "stop"),
    CallArguments(1, "{}"),
    CallEnd(1, is_complete=True),
)
CALLED = Done("calls", DONE.usage, REPORT, "")


def test_a_whole_answer() -> None:
    body = whole(parsed(user="me"), QueuePosition(1), Reasoning("Thi"), Reasoning("nk"), Content("Yes"), DONE)
    assert (body["id"], body["object"], body["created"], body["model"]) == ("chatcmpl-1", "chat.completion", 5, "double")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Yes", "reasoning_content": "Think"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 1}}
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9} | details
    assert body["forerun"]["ignored_fields"] == ["user"]
    assert {name: body["forerun"][name] for name in REPORT.__slots__} == {name: getattr(REPORT, name) for name in REPORT.__slots__}


def test_an_answer_without_reasoning_has_no_such_field() -> None:
    assert whole(parsed(), Content("Yes"), DONE)["choices"][0]["message"] == {"role": "assistant", "content": "Yes"}


def test_whole_calls() -> None:
    choice = whole(parsed(), *CALLS, CALLED)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}},
            {"id": "b", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
        ],
    }


def test_a_streamed_answer() -> None:
    lines = streamed(
        parsed(stream=True), QueuePosition(2), PrefillProgress(2048, 6000, 512, None), Reasoning("Hm"), Content("Y"), Content("es"), DONE
    )
    assert lines[:2] == [b": queued, 2 ahead\n", b": prefill 2048/6000 (512 cached)\n"]
    assert lines[-1] == b"data: [DONE]\n\n"
    assert deltas(lines) == [{"role": "assistant", "content": ""}, {"reasoning_content": "Hm"}, {"content": "Y"}, {"content": "es"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks(lines)] == [None] * 4 + ["stop"]
    assert ["forerun" in chunk for chunk in chunks(lines)] == [False] * 4 + [True]
    assert not any("usage" in chunk for chunk in chunks(lines))


def test_streamed_calls() -> None:
    lines = streamed(parsed(stream=True), *CALLS, CALLED)
    assert [delta["tool_calls"][0] for delta in deltas(lines)[1:-1]] == [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "read", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"path": '}},
        {"index": 0, "function": {"arguments": '"x"}'}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "stop", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert chunks(lines)[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_usage_comes_in_a_chunk_of_its_own() -> None:
    found = chunks(
        streamed(parsed(stream=True, stream_options={"include_usage": True}), Content("Yes"), Done("length", Usage(7, 3, 2, 0), REPORT, ""))
    )
    assert [chunk["usage"] for chunk in found[:-1]] == [None] * 3
    assert found[-2]["choices"][0]["finish_reason"] == "length"
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["total_tokens"] == 9
    assert ["forerun" in chunk for chunk in found] == [False] * 3 + [True]


def test_an_empty_answer_is_an_answer() -> None:
    assert deltas(streamed(parsed(), DONE)) == [{"role": "assistant", "content": ""}, {}]
    assert whole(parsed(), DONE)["choices"][0]["message"]["content"] == ""


HALF, REST = "é".encode()[:1], "é".encode()[1:]
SCORED = (
    Reasoning("Hm"),
    Content("Y", (TokenLogprob(b"Y", -0.25, (TopToken(b"Y", -0.25), TopToken(b"N", -1.5))),)),
    Content("é", (TokenLogprob(HALF, -2.0, ()), TokenLogprob(REST, 0.0, ()))),
    Done("stop", DONE.usage, REPORT, "", (TokenLogprob(b"<|end|>", -1.0, ()),)),
)
LOGPROBS = [
    {
        "token": "Y",
        "bytes": [89],
        "logprob": -0.25,
        "top_logprobs": [{"token": "Y", "bytes": [89], "logprob": -0.25}, {"token": "N", "bytes": [78], "logprob": -1.5}],
    },
    {"token": "\\xc3", "bytes": [0xC3], "logprob": -2.0, "top_logprobs": []},
    {"token": "\\xa9", "bytes": [0xA9], "logprob": 0.0, "top_logprobs": []},
]


def test_tokens_of_the_content_have_logprobs() -> None:
    given = parsed(logprobs=True, top_logprobs=2)
    assert given.jobs[0].logprobs == LogprobsRequest(2, of_prompt=False)
    body = whole(given, *SCORED)
    assert body["choices"][0]["logprobs"] == {"content": LOGPROBS, "refusal": None}
    ChatCompletion.model_validate(body)
    sent = chunks(streamed(given, *SCORED))
    for chunk in sent:
        ChatCompletionChunk.model_validate(chunk)
    assert [chunk["choices"][0]["logprobs"] for chunk in sent] == [
        None,
        None,
        {"content": LOGPROBS[:1], "refusal": None},
        {"content": LOGPROBS[1:], "refusal": None},
        None,
    ]
    assert {chunk["choices"][0]["logprobs"] for chunk in chunks(streamed(parsed(), *SCORED))} == {None}
    assert parsed().jobs[0].logprobs is None


def test_several_choices() -> None:
    given = parsed(n=2, seed=7, logprobs=True)
    assert [(job.id, job.sampling.seed) for job in given.jobs] == [("chatcmpl-1-0", 7), ("chatcmpl-1-1", 8)]
    events = (*SCORED, Content("No"), DONE)
    body = whole(given, *events)
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [(0, "Yé"), (1, "No")]
    assert [len(choice["logprobs"]["content"]) for choice in body["choices"]] == [3, 0]
    assert [choice["forerun"]["source"] for choice in body["choices"]] == ["ram", "ram"]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (7, 4)
    sent = [chunk["choices"][0] for chunk in chunks(streamed(given, *events))]
    assert [(choice["index"], choice["finish_reason"]) for choice in sent if choice["finish_reason"]] == [(0, "stop"), (1, "stop")]
    assert [choice["delta"] for choice in sent if choice["index"] == 1] == [
        {"role": "assistant", "content": ""},
        {"content": "No"},
        {},
    ]
