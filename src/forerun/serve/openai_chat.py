"""The OpenAI chat completions dialect: a request's JSON to a Job, a run's events back to JSON.

Pure. A known field that would change the answer and is not supported is an error; any other field is accepted and, if unused, named in
`forerun.ignored_fields`. Knows no engine, no HTTP and no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field

from forerun.errors import BadRequestError
from forerun.serve.fields import Fields, JobFields, StopStrings, WholeNumber, join_text, refuse, validate
from forerun.serve.openai_choices import MAX_CHOICES, ParsedRequest, ResponseFormat, StreamOptions, Value, repeated
from forerun.serve.openai_logprobs import entries
from forerun.serve.shapes import CALL, HAS_CONTENT, TOOL, TextPart
from forerun.text.message import AssistantMessage
from forerun.values import (
    CallArguments,
    CallStart,
    Chat,
    Content,
    Done,
    Event,
    Job,
    LogprobsRequest,
    ModelInfo,
    Piece,
    Reasoning,
    TokenLogprob,
)

# Fields of this dialect and its usual extensions that would change the answer, each with the values that have no effect, besides NO_EFFECT.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "functions", "web_search_options"), ()),
    **dict.fromkeys(("grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "structured_outputs"), ()),
    **dict.fromkeys(("bad_words", "continue_final_message", "ignore_eos", "min_tokens", "stop_token_ids"), ()),
    **dict.fromkeys(("dry_multiplier", "mirostat", "top_a", "xtc_probability"), ()),
    **dict.fromkeys(("best_of", "tfs_z", "typical_p"), (1,)),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
}
CHOICE_HINT = "'auto' and 'none' are; forced calls need constrained decoding, which is not supported"
NO_EFFECT: tuple[Any, ...] = (False, 0, "", [], {})


def _join_text(content: Any) -> Any:
    return join_text(content, ("text",))


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
    """One message. The template gets the fields of this schema alone, and developer under its older name."""

    model_config = ConfigDict(json_schema_extra=HAS_CONTENT)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_join_text, json_schema_input_type=str | list[TextPart] | None)] = None
    reasoning_content: Annotated[str | None, Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))] = None
    tool_calls: list[Annotated[dict[str, Any], AfterValidator(_check_call), CALL]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def value(self) -> dict[str, Any]:
        """The message in the form of the chat template."""
        fields = self.model_dump(include=set(Message.model_fields), exclude_none=True)
        return fields | {"role": "system" if self.role == "developer" else self.role, "content": self.content or ""}


class Request(JobFields):
    """A chat completion request. `model` may be any name: there is one model."""

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: WholeNumber | None = Field(None, ge=1)
    max_completion_tokens: WholeNumber | None = Field(None, ge=1)
    stop: StopStrings = Field([])
    tools: list[Annotated[dict[str, Any], AfterValidator(_check_tool), TOOL]] = Field([])
    tool_choice: Any = "auto"
    chat_template_kwargs: dict[str, Any] = Field({})
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    n: WholeNumber = Field(1, ge=1, le=MAX_CHOICES)
    logprobs: bool = False
    top_logprobs: WholeNumber = Field(0, ge=0, le=20)

    def chat(self) -> Chat:
        """The conversation and the arguments of the template."""
        named = {"enable_thinking": self.enable_thinking, "reasoning_effort": self.reasoning_effort}
        args = self.chat_template_kwargs | {name: value for name, value in named.items() if value is not None}
        tools = () if self.tool_choice == "none" else tuple(self.tools)
        return Chat(tuple(message.value() for message in self.messages), tools, args)

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but unused, in their order in the request."""
        names = [name for name in self.unknown if name not in UNSUPPORTED]
        names += [f"stream_options.{name}" for name in self.stream_options.unknown]
        names += [f"messages.{name}" for message in self.messages for name in message.unknown]
        return tuple(dict.fromkeys(names))


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> ParsedRequest:
    """The request as jobs; sampling that it leaves out is the model's default. Raises BadRequestError that names the field."""
    request = validate(Request, body)
    _check_supported(request)
    job = request.job(
        request.chat(),
        info,
        id=id,
        tenant=tenant,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        stop=request.stop,
        logprobs=LogprobsRequest(request.top_logprobs, of_prompt=False) if request.logprobs else None,
    )
    jobs = repeated([job], request.n)
    return ParsedRequest(id, jobs, request.n, FORMAT, request.stream, request.stream_options.include_usage, request.ignored())


def _check_supported(request: Request) -> None:
    for index, message in enumerate(request.messages):
        if message.content is None and message.role != "assistant":
            raise BadRequestError(f"messages[{index}].content: a {message.role} message needs content", param=f"messages[{index}].content")
        if message.tool_calls and message.role != "assistant":
            raise BadRequestError(f"messages[{index}].tool_calls: only the assistant calls tools", param=f"messages[{index}].tool_calls")
    if request.tool_choice not in ("auto", "none"):
        raise BadRequestError(f"tool_choice: {request.tool_choice!r} is not supported", param="tool_choice", hint=CHOICE_HINT)
    if request.top_logprobs and not request.logprobs:
        raise BadRequestError("top_logprobs: logprobs are not requested", param="top_logprobs", hint="send 'logprobs': true with it")
    refuse(request.unknown, {name: (*NO_EFFECT, *values) for name, values in UNSUPPORTED.items()}, {})


class Choice:
    """One answer as a message."""

    def __init__(self, job: Job) -> None:
        self._message = AssistantMessage()
        self._tokens: list[TokenLogprob] = []
        self._has_begun, self._has_logprobs = False, job.logprobs is not None

    def take(self, event: Event) -> Iterator[Value]:
        """Add an event. Yields the fields of its chunks, after one with the role."""
        delta = _delta(event)
        if (delta or isinstance(event, Done)) and not self._has_begun:
            self._has_begun = True
            yield self._fields({"role": "assistant", "content": ""}, None)
        if isinstance(event, Piece):
            self._message.take(event)
        if delta:
            tokens = event.logprobs if isinstance(event, Content) else None
            self._tokens += tokens or ()
            yield self._fields(delta, tokens)

    def last(self, done: Done) -> Value:
        """Empty."""
        return self._fields({}, None)

    def value(self) -> Value:
        """The message, and its logprobs if requested."""
        return {"message": self._message.value(), "logprobs": self._logprobs(self._tokens)}

    def _fields(self, delta: Value, tokens: Sequence[TokenLogprob] | None) -> Value:
        return {"delta": delta, "logprobs": self._logprobs(tokens)}

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None) -> Value | None:
        return {"content": entries(tokens), "refusal": None} if self._has_logprobs and tokens is not None else None


FORMAT = ResponseFormat("chat.completion", "chat.completion.chunk", Choice)


def _delta(event: Event) -> Value:
    """The delta of a piece of the answer; {} for other events."""
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
