"""The Anthropic messages dialect: a request's JSON to a Job. `anthropic_answer.py` writes the response.

Pure. A conversation becomes the messages that an OpenAI client would send, so that one chat template serves both. A known field that
would change the answer and is not supported is an error; any other is accepted and, if unused, named as ignored.
Knows no engine, no HTTP and no tokens. Source: Anthropic's Messages API, version 2023-06-01.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field, ModelWrapValidatorHandler, WithJsonSchema, model_validator

from forerun.errors import BadRequestError
from forerun.serve import shapes
from forerun.serve.anthropic_answer import ParsedRequest, reasoning_of
from forerun.serve.content import MessageContent, joined, left_out, part_content
from forerun.serve.deferred_tools import declaration
from forerun.serve.fields import Fields, JobFields, Limit, StopStrings, WholeNumber, check_required, limit_of, refuse, validate
from forerun.serve.formats import format_of, only, shown
from forerun.serve.tool_choice import DeclaredTools, call_rule
from forerun.values import CallRule, Chat, ModelInfo, OutputFormat

# Claude Code's first system block: its last digits depend on the first user message, so that no two conversations would share a prefix.
BILLING = "x-anthropic-billing-header:"
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "prefill": (None, {}),
    "container": (None,),
    "thread": (),
    "compaction": (),
}
HINTS = {"thread": "this server stores no threads: send the whole conversation"}
# Required fields of a block, by type. Of a block of any other type the text is taken, or a line is in its place.
REQUIRED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "text": (),
    "thinking": (),
    "redacted_thinking": (),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "tool_reference": ("tool_name",),
}
ALLOWED_BLOCKS: Mapping[str, frozenset[str]] = {
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "system": frozenset({"text"}),
    "tool_result": frozenset({"text", "tool_reference"}),
}
MESSAGE_BLOCKS = {kind: names for kind, names in REQUIRED_FIELDS.items() if kind in ALLOWED_BLOCKS["user"] | ALLOWED_BLOCKS["assistant"]}
ENABLES_THINKING: Mapping[str, bool] = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}


def _as_blocks(content: Any) -> Any:
    """A string counts as one block of text, also in a list; null counts as none."""
    blocks = [content] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        return blocks
    return [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks if block is not None]


def _is_hosted(type: str) -> bool:
    """Whether a block of this type is of a call that the provider runs."""
    return type in ("server_tool_use", "mcp_tool_use") or (type.endswith("_tool_result") and type not in REQUIRED_FIELDS)


BlockList = BeforeValidator(_as_blocks)


class Block(Fields):
    """One block of content. part: its text, which clients do not set."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str = ""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: Annotated[list[Block], FailFast(), BlockList] = Field([])
    part: MessageContent = MessageContent()

    @model_validator(mode="wrap")
    @classmethod
    def _parse(cls, value: Any, handler: ModelWrapValidatorHandler[Block]) -> Block:
        is_parsed = not isinstance(value, dict) or isinstance(value.get("part"), MessageContent)  # a schema that holds itself is run twice
        if is_parsed or not isinstance(kind := value.get("type"), str):
            return handler(value)
        if kind not in REQUIRED_FIELDS:
            return handler({"type": kind, "part": MessageContent(notes=(left_out(kind),)) if _is_hosted(kind) else part_content(value)})
        text = value.get("text")
        block = handler(value | {"part": MessageContent(text if isinstance(text, str) else "")})
        check_required(block, "a block", kind, REQUIRED_FIELDS)
        return block

    @property
    def is_hosted(self) -> bool:
        """Whether it is of a call that the provider ran."""
        return _is_hosted(self.type)

    def unused(self) -> Iterator[str]:
        """What has no effect, in it and in its parts: fields, and blocks of calls that the provider ran."""
        yield from [self.type] if self.is_hosted else self.unknown
        for part in self.content:
            yield from part.unused()

    def notes(self) -> Iterator[str]:
        """What is not rendered as it was sent, in it and in its parts."""
        yield from self.part.notes
        for part in self.content:
            yield from part.notes()


class Message(Fields):
    """One message. A system message may be at any position."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], FailFast(), BlockList, WithJsonSchema(shapes.blocks(MESSAGE_BLOCKS))] = Field([])

    @model_validator(mode="after")
    def _check(self) -> Message:
        if self.role != "assistant" and "content" not in self.model_fields_set:
            raise ValueError(f"a {self.role} message needs content")
        return self


def _as_tool(tool: Any) -> Any:
    """Anthropic's own tools have no schema, and other models do not know them: only their type is of use."""
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") in (None, "custom") or tool.get("input_schema") is not None:
        return tool | {"is_hosted": False}
    return {"type": tool["type"], "name": "-", "input_schema": {}, "is_hosted": True}


class Tool(Fields):
    """A tool that the client runs, or, if is_hosted, one that only the provider knows."""

    type: str = "custom"
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool = False
    defer_loading: bool = False
    is_hosted: bool = False

    def value(self) -> dict[str, Any]:
        """The tool in the form of chat templates, its schema unchanged."""
        description = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **description, "parameters": self.input_schema}}


def _as_choice(choice: Any) -> Any:
    return {"type": choice} if isinstance(choice, str) else choice


class ToolChoice(Fields):
    """Which tools are called; disable_parallel_tool_use: one at most."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Fields):
    """Whether the model thinks before it answers; display "omitted": the thoughts are not shown to the client.

    budget_tokens: their limit.
    """

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    display: str = "summarized"
    budget_tokens: Limit = None


class OutputConfig(Fields):
    """effort: how much the model should think, for templates that have such an argument. format: the form of the answer."""

    effort: str | None = None
    format: dict[str, Any] = Field({})


class Prompt(Fields):
    """The conversation: common to the requests for an answer and for a token count."""

    model: str | None = None
    messages: Annotated[list[Message], FailFast()] = Field(min_length=1)
    system: Annotated[list[Block], FailFast(), BlockList, WithJsonSchema(shapes.blocks({"text": ("text",)}))] = Field([])
    tools: list[Annotated[Tool, BeforeValidator(_as_tool)]] = Field([])
    tool_choice: Annotated[ToolChoice, BeforeValidator(_as_choice, json_schema_input_type=ToolChoice | str)] = ToolChoice(type="auto")
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig(format={})
    output_format: dict[str, Any] = Field({})

    @property
    def format(self) -> OutputFormat | None:
        """The form of the answer, which this dialect always enforces. Raises BadRequestError."""
        given = {"output_config.format": self.output_config.format, "output_format": self.output_format}
        return only(format_of(value, param, is_strict=True) for param, value in given.items())

    def chat(self) -> Chat:
        """The conversation and the arguments of the template."""
        own = [tool for tool in self.tools if not tool.is_hosted]
        tools, held_back = (tuple(tool.value() for tool in own if tool.defer_loading == held) for held in (False, True))
        deferred = {tool["function"]["name"]: tool for tool in held_back}
        messages = [*self._system(), *(each for message in self.messages for each in _chat_messages(message, deferred))]
        if self.tool_choice.type == "none":
            tools, held_back = (), ()
        args: dict[str, Any] = {} if self.thinking is None else {"enable_thinking": ENABLES_THINKING[self.thinking.type]}
        if self.output_config.effort is not None:
            args["reasoning_effort"] = self.output_config.effort
        blocks = (*self.system, *(block for message in self.messages for block in message.content))
        notes = (
            *([left_out("mcp_servers")] if self.unknown.get("mcp_servers") else ()),
            *(note for block in blocks for note in block.notes()),
        )
        return Chat(tuple(messages), tools, args, held_back, tuple(dict.fromkeys(notes)))

    def _system(self) -> Iterator[dict[str, Any]]:
        blocks = [block for block in self.system if not (block.text or "").startswith(BILLING)]
        if blocks:
            yield {"role": "system", "content": _text(blocks)}


class Request(Prompt, JobFields):
    """A request for a message. `model` may be any name: there is one model."""

    max_tokens: WholeNumber
    stop_sequences: StopStrings = Field([])
    stream: bool = False

    def calls(self) -> CallRule:
        """Which of the tools the answer calls. Raises BadRequestError."""
        own = {tool.name: tool for tool in self.tools if not tool.is_hosted}
        strict = frozenset(name for name, tool in own.items() if tool.strict)
        is_parallel = not self.tool_choice.disable_parallel_tool_use
        choice = {"type": "tool", "name": self.tool_choice.name} if self.tool_choice.type == "tool" else self.tool_choice.type
        return call_rule(choice, DeclaredTools(own, strict), is_parallel=is_parallel)

    @property
    def thinking_tokens(self) -> int | None:
        """The limit of the thoughts."""
        budget = None if self.thinking is None else self.thinking.budget_tokens
        return None if budget is None else max(0, budget)

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but unused."""
        names = list(self.unknown)
        for name, part in (("tool_choice", self.tool_choice), ("thinking", self.thinking), ("output_config", self.output_config)):
            names += [f"{name}.{each}" for each in (part.unknown if part else ())]
        names += [f"tools.{each}" for tool in self.tools for each in ([tool.type] if tool.is_hosted else tool.unknown)]
        names += [f"system.{each}" for block in self.system for each in block.unused()]
        names += [f"messages.content.{each}" for message in self.messages for block in message.content for each in block.unused()]
        return tuple(dict.fromkeys(names))


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> ParsedRequest:
    """The request as a Job; sampling that it leaves out is the model's default. Raises BadRequestError that names the field."""
    request = validate(Request, body)
    _check_supported(request)
    job = request.job(
        request.chat(),
        info,
        id=id,
        tenant=tenant,
        max_tokens=limit_of(request.max_tokens),
        stop=request.stop_sequences,
        output=request.format,
        calls=request.calls(),
        thinking_tokens=request.thinking_tokens,
    )
    shows_reasoning = request.thinking is None or request.thinking.display != "omitted"
    return ParsedRequest(job, request.stream, request.ignored(), shows_reasoning)


def parse_count(body: dict[str, Any]) -> Chat:
    """The conversation to count the tokens of. Raises BadRequestError."""
    request = validate(Prompt, body)
    _check_supported(request)
    return shown(request.chat(), request.format)


def _check_supported(request: Prompt) -> None:
    refuse(request.unknown, UNSUPPORTED, HINTS)
    for index, message in enumerate(request.messages):
        _check_blocks(f"messages[{index}]", message.role, message.content)
    _check_blocks("system", "system", request.system)


def _check_blocks(where: str, holder: str, blocks: list[Block]) -> None:
    for index, block in enumerate(blocks):
        if block.type in REQUIRED_FIELDS and block.type not in ALLOWED_BLOCKS[holder]:
            path = f"{where}.content[{index}]"
            raise BadRequestError(f"{path}: a {block.type} block cannot be in a {holder} message", param=path)
        _check_blocks(f"{where}.content[{index}]", block.type, block.content if block.type == "tool_result" else [])


def _chat_messages(message: Message, deferred: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The message in the form of chat templates: each tool result becomes a message of its own, at its position."""
    if message.role == "assistant":
        yield _assistant(message.content)
        return
    own = (block for block in message.content if not block.is_hosted)
    for is_result, blocks in groupby(own, key=lambda block: block.type == "tool_result"):
        if not is_result:
            yield {"role": message.role, "content": _text(blocks)}
            continue
        for block in blocks:
            parts = (MessageContent(declaration(part.tool_name, deferred)) if part.tool_name else part.part for part in block.content)
            yield {"role": "tool", "content": joined(parts).text, "tool_call_id": block.tool_use_id}


def _assistant(blocks: list[Block]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(blocks)}
    thoughts = [reasoning_of(block.thinking or "", block.signature) for block in blocks if block.type == "thinking"]
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input or {}}}
        for block in blocks
        if block.type == "tool_use"
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _text(blocks: Iterable[Block]) -> str:
    return joined(block.part for block in blocks).text
