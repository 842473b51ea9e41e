"""The OpenAI chat completions dialect: a request's JSON to a Job, a run's events back to JSON.

Pure. A known field that would change the answer and is not supported is an error; any other field is accepted and,
if nothing is done with it, named in `forerun.ignored_fields`. Knows no engine, no HTTP and no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field

from forerun.errors import BadRequestError
from forerun.serve.dialect import report_of
from forerun.serve.fields import Fields, ForerunFields, SamplingFields, Stops, joined, read, refuse
from forerun.serve.problems import Problem
from forerun.serve.sse import END, comment, data, progress
from forerun.text.message import AssistantMessage
from forerun.values import (
    CallArguments,
    CallStart,
    Chat,
    Content,
    Done,
    Event,
    Finish,
    Job,
    ModelInfo,
    Queued,
    Reading,
    Reasoning,
    Usage,
)

# Fields of this dialect and its usual extensions that would change the answer, each with the values that ask for nothing, besides NOTHING.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "functions", "logprobs", "top_logprobs", "web_search_options"), ()),
    **dict.fromkeys(("grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "structured_outputs"), ()),
    **dict.fromkeys(("bad_words", "continue_final_message", "ignore_eos", "min_tokens", "stop_token_ids"), ()),
    **dict.fromkeys(("dry_multiplier", "mirostat", "top_a", "xtc_probability"), ()),
    **dict.fromkeys(("best_of", "n", "tfs_z", "typical_p"), (1,)),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
}
FINISH: Mapping[Finish, str] = {"stop": "stop", "length": "length", "calls": "tool_calls"}
CHOICE_HINT = "'auto' and 'none' are; a call cannot be forced before answers can be held to a grammar"
NOTHING: tuple[Any, ...] = (False, 0, "", [], {})


def _joined(content: Any) -> Any:
    return joined(content, ("text",))


def _check_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("a tool call has a function with a name")
    if not isinstance(function.get("arguments"), str | dict):
        raise ValueError("the arguments of a tool call are a string of JSON")
    return call


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("a tool is of type 'function' and has a function with a name")
    return tool


class Message(Fields):
    """One message. What goes to the template is what is known here, with developer under its older name."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_joined, json_schema_input_type=str | list[dict[str, Any]] | None)] = None
    reasoning_content: Annotated[str | None, Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))] = None
    tool_calls: list[Annotated[dict[str, Any], AfterValidator(_check_call)]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def value(self) -> dict[str, Any]:
        """The message as the chat template gets it."""
        known = self.model_dump(include=set(Message.model_fields), exclude_none=True)
        return known | {"role": "system" if self.role == "developer" else self.role, "content": self.content or ""}


class StreamOptions(Fields):
    """What a stream has besides the answer."""

    include_usage: bool = False


class Request(SamplingFields):
    """A chat completion request. `model` may be any name: one model is served."""

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: Stops = Field([])
    tools: list[Annotated[dict[str, Any], AfterValidator(_check_tool)]] = Field([])
    tool_choice: Any = "auto"
    chat_template_kwargs: dict[str, Any] = Field({})
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    forerun: ForerunFields = ForerunFields()

    def chat(self) -> Chat:
        """The conversation, and what the template is told besides."""
        spoken = {"enable_thinking": self.enable_thinking, "reasoning_effort": self.reasoning_effort}
        args = self.chat_template_kwargs | {name: value for name, value in spoken.items() if value is not None}
        tools = () if self.tool_choice == "none" else tuple(self.tools)
        return Chat(tuple(message.value() for message in self.messages), tools, args)

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but not used, in the order in which they came."""
        names = [name for name in self.unknown if name not in UNSUPPORTED]
        names += [f"stream_options.{name}" for name in self.stream_options.unknown]
        names += [f"messages.{name}" for message in self.messages for name in message.unknown]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was understood."""

    job: Job
    streams: bool
    includes_usage: bool
    ignored_fields: tuple[str, ...]


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> Asked:
    """What the request asks for; sampling that it leaves open is the model's default. Raises BadRequestError that names the field."""
    request = read(Request, body)
    _check_supported(request)
    job = Job(
        id=id,
        prompt=request.chat(),
        sampling=request.sampling(info.defaults),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        stop=tuple(request.stop),
        session=request.forerun.session,
        tenant=tenant,
        bank=request.forerun.bank,
    )
    return Asked(job, request.stream, request.stream_options.include_usage, request.ignored())


def _check_supported(request: Request) -> None:
    for index, message in enumerate(request.messages):
        if message.content is None and message.role != "assistant":
            raise BadRequestError(f"messages[{index}].content: a {message.role} message needs content", param=f"messages[{index}].content")
    if request.tool_choice not in ("auto", "none"):
        raise BadRequestError(f"tool_choice: {request.tool_choice!r} is not supported", param="tool_choice", hint=CHOICE_HINT)
    refuse(request.unknown, {name: (*NOTHING, *values) for name, values in UNSUPPORTED.items()}, {})


class _Answer:
    """What streamed and whole answers have in common."""

    kind: str

    def __init__(self, asked: Asked, info: ModelInfo, *, created_unix_s: int) -> None:
        self._head = {"id": asked.job.id, "object": self.kind, "created": created_unix_s, "model": info.name}
        self._asked = asked


class Whole(_Answer):
    """An answer in one piece: `take` every event, then `body`."""

    kind = "chat.completion"

    def __init__(self, asked: Asked, info: ModelInfo, *, created_unix_s: int) -> None:
        super().__init__(asked, info, created_unix_s=created_unix_s)
        self._message = AssistantMessage()
        self._done: Done | None = None

    def take(self, event: Event) -> None:
        """Add an event's piece of the answer; keep the last event."""
        if isinstance(event, Done):
            self._done = event
        elif not isinstance(event, Queued | Reading):
            self._message.take(event)

    def body(self) -> dict[str, Any]:
        """The completion object, once Done was taken."""
        assert self._done is not None
        choice = {"index": 0, "message": self._message.value(), "logprobs": None, "finish_reason": FINISH[self._done.finish]}
        report = report_of(self._done, self._asked.ignored_fields)
        return self._head | {"choices": [choice], "usage": usage(self._done.usage), "forerun": report}


class Streamed(_Answer):
    """An answer as server-sent events."""

    kind = "chat.completion.chunk"

    def __init__(self, asked: Asked, info: ModelInfo, *, created_unix_s: int) -> None:
        super().__init__(asked, info, created_unix_s=created_unix_s)
        self._has_begun = False

    def frames(self, event: Event) -> Iterator[bytes]:
        """The frames of one event."""
        yield from progress(event)
        delta = _delta(event)
        if delta or isinstance(event, Done):
            yield from self._begin()
        if delta:
            yield self._chunk(delta)
        if isinstance(event, Done):
            yield from self._end(event)

    def keepalive(self) -> bytes:
        """A comment: every client of this dialect counts it as life."""
        return comment("keepalive")

    def failed(self, problem: Problem) -> bytes:
        """The error object as the last frame."""
        return data(problem.body())

    def _begin(self) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            yield self._chunk({"role": "assistant", "content": ""})

    def _end(self, done: Done) -> Iterator[bytes]:
        report = {"forerun": report_of(done, self._asked.ignored_fields)}
        if self._asked.includes_usage:
            yield self._chunk({}, FINISH[done.finish])
            yield data(self._head | {"choices": [], "usage": usage(done.usage)} | report)
        else:
            yield self._chunk({}, FINISH[done.finish], report)
        yield END

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, more: Mapping[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return data(self._head | {"choices": [choice]} | ({"usage": None} if self._asked.includes_usage else {}) | dict(more or {}))


def _delta(event: Event) -> dict[str, Any]:
    """What a piece of the answer adds to the message; nothing for other events."""
    match event:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(index, id, name):
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}
        case CallArguments(index, json):
            return {"tool_calls": [{"index": index, "function": {"arguments": json}}]}
        case _:
            return {}


def usage(counts: Usage) -> dict[str, Any]:
    """Token counts under OpenAI's names."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
    }
