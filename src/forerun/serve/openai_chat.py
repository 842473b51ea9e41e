"""The OpenAI chat completions dialect: a request's JSON to a Job, a run's events back to JSON.

Pure. A known field that would change the answer and is not supported is an error; any other field is accepted and, if unused, named in
`forerun.ignored_fields`. Knows no engine, no HTTP and no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, ConfigDict, FailFast, Field, model_validator

from forerun.errors import BadRequestError
from forerun.serve.content import ContentField, MessageContent
from forerun.serve.custom_tools import FREE_TEXT, function, input_format, input_of
from forerun.serve.fields import Fields, JobFields, Limit, StopStrings, ToolChoice, WholeNumber, refuse, validate
from forerun.serve.formats import format_of
from forerun.serve.openai_choices import MAX_CHOICES, ParsedRequest, ResponseFormat, StreamOptions, Value, repeated
from forerun.serve.openai_logprobs import entries
from forerun.serve.shapes import CALL, HAS_CONTENT, TOOL
from forerun.serve.tool_choice import DeclaredTools, call_rule
from forerun.text.message import AssistantMessage, split_reasoning
from forerun.values import (
    CallArguments,
    CallEnd,
    CallRule,
    CallStart,
    Chat,
    Content,
    Done,
    Event,
    Job,
    LogprobsRequest,
    ModelInfo,
    OutputFormat,
    Piece,
    Reasoning,
    TokenLogprob,
)

# Fields of this dialect and its usual extensions that would change the answer, each with the values that have no effect, besides NO_EFFECT.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "functions", "web_search_options"), ()),
    **dict.fromkeys(("bad_words", "continue_final_message", "ignore_eos", "min_tokens", "stop_token_ids"), ()),
    **dict.fromkeys(("dry_multiplier", "mirostat", "top_a", "xtc_probability"), ()),
    **dict.fromkeys(("best_of", "tfs_z", "typical_p"), (1,)),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
}
HINTS = {"functions": "send them as 'tools'", "function_call": "send 'tool_choice'"}
NO_EFFECT: tuple[Any, ...] = (False, 0, "", [], {})
OWN_TOOLS = ("function", "custom")  # that the client runs


def _checked_call(call: dict[str, Any]) -> dict[str, Any]:
    """The call of a function; arguments that are left out are {}. A custom tool is called with one argument, `input`."""
    function = call.get("function")
    if isinstance(custom := call.get("custom"), dict):
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input") or ""}}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("a tool call has a function with a name")
    arguments = {} if function.get("arguments") is None else function["arguments"]
    if not isinstance(arguments, str | dict):
        raise ValueError("the arguments of a tool call are a string of JSON")
    return call | {"function": function | {"arguments": arguments}}


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    type = tool.get("type")
    inner = tool.get(type) if isinstance(type, str) else None
    is_named = isinstance(inner, dict) and isinstance(inner.get("name"), str)
    if not isinstance(type, str) or (type in OWN_TOOLS and not is_named):
        raise ValueError("a tool has a type, and one of type 'function' or 'custom' a field of that name, with a name")
    return tool


def _function_id(function: dict[str, Any]) -> str:
    """The id of a call from before calls had ids: the result that follows has the same name."""
    return f"call_{function.get('name')}"


class Message(Fields):
    """One message. The template gets the fields of this schema alone, and developer under its older name. What was written before there
    were tools, `function_call` and role `function`, becomes a call of a tool and its result.
    """

    model_config = ConfigDict(json_schema_extra=HAS_CONTENT)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: ContentField = None
    refusal: str | None = None
    reasoning_content: Annotated[str | None, Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))] = None
    tool_calls: list[Annotated[dict[str, Any], AfterValidator(_checked_call), CALL]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_function(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.get("role") == "function":
            return value | {"role": "tool", "tool_call_id": _function_id(value)}
        call = value.get("function_call")
        if not isinstance(call, dict) or value.get("tool_calls"):
            return value
        return value | {"function_call": None, "tool_calls": [{"id": _function_id(call), "type": "function", "function": call}]}

    def value(self) -> dict[str, Any]:
        """The message in the form of the chat template."""
        fields = self.model_dump(include={"tool_calls", "tool_call_id", "name"}, exclude_none=True)
        message = fields | {"role": "system" if self.role == "developer" else self.role, "content": (self.content or MessageContent()).text}
        return message | self._answer() if self.role == "assistant" else message

    def _answer(self) -> dict[str, Any]:
        """The fields of an answer: its reasoning has a field of its own, or starts the content, in tags."""
        content = self.content or MessageContent()
        text = content.text or self.refusal or ""
        reasoning = self.reasoning_content or content.reasoning
        if not reasoning:
            reasoning, text = split_reasoning(text)
        has_reasoning = reasoning or self.reasoning_content is not None
        return {"content": text} | ({"reasoning_content": reasoning} if has_reasoning else {})


class ReasoningFields(Fields):
    """OpenRouter's form of `reasoning_effort` and of the limit of the reasoning."""

    effort: str | None = None
    max_tokens: Limit = None


class Request(JobFields):
    """A chat completion request. `model` may be any name: there is one model."""

    model: str | None = None
    messages: Annotated[list[Message], FailFast()] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: Limit = None
    max_completion_tokens: Limit = None
    stop: StopStrings = Field([])
    tools: list[Annotated[dict[str, Any], AfterValidator(_check_tool), TOOL]] = Field([])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] = Field({})
    chat_template_kwargs: dict[str, Any] = Field({})
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningFields = ReasoningFields()
    n: WholeNumber = Field(1, ge=1, le=MAX_CHOICES)
    logprobs: bool = False
    top_logprobs: WholeNumber = Field(0, ge=0, le=20)

    def chat(self) -> Chat:
        """The conversation and the arguments of the template."""
        named = {"enable_thinking": self.enable_thinking, "reasoning_effort": self.reasoning_effort or self.reasoning.effort}
        args = self.chat_template_kwargs | {name: value for name, value in named.items() if value is not None}
        tools = () if self.tool_choice == "none" else tuple(_function(tool) for tool in self.tools if tool["type"] in OWN_TOOLS)
        notes = dict.fromkeys(note for message in self.messages if message.content for note in message.content.notes)
        return Chat(tuple(message.value() for message in self.messages), tools, args, notes=tuple(notes))

    def calls(self) -> CallRule:
        """Which of the tools the answer calls. Raises BadRequestError."""
        own = {tool[tool["type"]]["name"]: tool for tool in self.tools if tool["type"] in OWN_TOOLS}
        strict = frozenset(name for name, tool in own.items() if tool.get("function", {}).get("strict") is True)
        return call_rule(self.tool_choice, DeclaredTools(own, strict, dict(self._inputs())), is_parallel=self.parallel_tool_calls)

    def _inputs(self) -> Iterator[tuple[str, OutputFormat]]:
        for index, tool in enumerate(self.tools):
            if tool["type"] == "custom" and (found := input_format(tool["custom"].get("format"), f"tools[{index}].custom.format")):
                yield tool["custom"]["name"], found

    @property
    def format(self) -> ResponseFormat:
        """How the answer is written: calls of custom tools have a form of their own."""
        custom = frozenset(tool["custom"]["name"] for tool in self.tools if tool["type"] == "custom")
        return replace(FORMAT, choice=ChoiceWriter(custom))

    @property
    def limit(self) -> int | None:
        """The limit on the answer's tokens; 0 and below are none."""
        return next((limit for limit in (self.max_completion_tokens, self.max_tokens) if limit and limit > 0), None)

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but unused, in their order in the request."""
        names = [name for name in self.unknown if name not in UNSUPPORTED]
        names += [f"stream_options.{name}" for name in self.stream_options.unknown]
        names += [f"messages.{name}" for message in self.messages for name in message.unknown]
        names += [f"reasoning.{name}" for name in self.reasoning.unknown]
        names += [f"tools.{tool['type']}" for tool in self.tools if tool["type"] not in OWN_TOOLS]  # the provider runs it
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
        max_tokens=request.limit,
        stop=request.stop,
        logprobs=LogprobsRequest(request.top_logprobs, of_prompt=False) if request.logprobs else None,
        output=format_of(request.response_format, "response_format"),
        calls=request.calls(),
        thinking_tokens=request.reasoning.max_tokens,
    )
    jobs = repeated([job], request.n)
    return ParsedRequest(id, jobs, request.n, request.format, request.stream, request.stream_options.include_usage, request.ignored())


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool in the form of chat templates: a custom one as a function."""
    return function(tool["custom"], FREE_TEXT) if tool["type"] == "custom" else tool


def _check_supported(request: Request) -> None:
    for index, message in enumerate(request.messages):
        if message.content is None and message.role not in ("assistant", "tool"):
            raise BadRequestError(f"messages[{index}].content: a {message.role} message needs content", param=f"messages[{index}].content")
        if message.tool_calls and message.role != "assistant":
            raise BadRequestError(f"messages[{index}].tool_calls: only the assistant calls tools", param=f"messages[{index}].tool_calls")
    if request.top_logprobs and not request.logprobs:
        raise BadRequestError("top_logprobs: logprobs are not requested", param="top_logprobs", hint="send 'logprobs': true with it")
    refuse(request.unknown, {name: (*NO_EFFECT, *values) for name, values in UNSUPPORTED.items()}, HINTS)


class Choice:
    """One answer as a message. custom: names of custom tools; a call of one is sent when it is complete."""

    def __init__(self, job: Job, custom: frozenset[str]) -> None:
        self._message, self._custom = AssistantMessage(), custom
        self._inputs: dict[int, str] = {}  # the arguments so far, of calls of custom tools
        self._tokens: list[TokenLogprob] = []
        self._has_begun, self._has_logprobs = False, job.logprobs is not None

    def take(self, event: Event) -> Iterator[Value]:
        """Add an event. Yields the fields of its chunks, after one with the role."""
        delta = self._delta(event)
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
        message = self._message.value()
        calls = {"tool_calls": [self._call(call) for call in message["tool_calls"]]} if "tool_calls" in message else {}
        return {"message": message | calls, "logprobs": self._logprobs(self._tokens)}

    def _delta(self, event: Event) -> Value:
        """The delta of a piece of the answer; {} for other events."""
        match event:
            case CallStart(index, id, name) if name in self._custom:
                self._inputs[index] = ""
                return {"tool_calls": [{"index": index, "id": id, "type": "custom", "custom": {"name": name, "input": ""}}]}
            case CallArguments(index, json) if index in self._inputs:
                self._inputs[index] += json
                return {}
            case CallEnd(index) if index in self._inputs:
                return {"tool_calls": [{"index": index, "custom": {"input": input_of(self._inputs[index])}}]}
        return _delta(event)

    def _call(self, call: Value) -> Value:
        """A call in the form of its tool."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        custom = {"id": call["id"], "type": "custom", "custom": {"name": name, "input": input_of(arguments)}}
        return custom if name in self._custom else call

    def _fields(self, delta: Value, tokens: Sequence[TokenLogprob] | None) -> Value:
        return {"delta": delta, "logprobs": self._logprobs(tokens)}

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None) -> Value | None:
        return {"content": entries(tokens), "refusal": None} if self._has_logprobs and tokens is not None else None


@dataclass(frozen=True, slots=True)
class ChoiceWriter:
    """Begins a choice of a request with these custom tools."""

    custom: frozenset[str]

    def __call__(self, job: Job) -> Choice:
        return Choice(job, self.custom)


FORMAT = ResponseFormat("chat.completion", "chat.completion.chunk", ChoiceWriter(frozenset()))


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
