"""The Anthropic messages dialect: a request's JSON to a Job. `anthropic_answer.py` writes the response.

Pure. A conversation becomes the messages that an OpenAI client would send, so that one chat template serves both. A known field that
would change the answer and is not supported is an error; any other is accepted and, if unused, named as ignored.
Knows no engine, no HTTP and no tokens. Source: Anthropic's Messages API, version 2023-06-01.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from forerun.errors import BadRequestError
from forerun.serve import shapes
from forerun.serve.anthropic_answer import ParsedRequest, reasoning_of
from forerun.serve.deferred_tools import DeferredTools
from forerun.serve.fields import Fields, JobFields, StopStrings, WholeNumber, check_type, refuse, validate
from forerun.values import Chat, ModelInfo

# Claude Code's first system block: its last digits depend on the first user message, so that no two conversations would share a prefix.
BILLING = "x-anthropic-billing-header:"
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "prefill": (None, {}),
    "mcp_servers": ([],),
    "container": (None,),
    "thread": (),
    "compaction": (),
}
HINTS = {"thread": "this server stores no threads: send the whole conversation"}
# Required fields of a block, by type.
REQUIRED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
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
    """A string counts as one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


BlockList = BeforeValidator(_as_blocks)


class Block(Fields):
    """One block of content, of any supported type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str = ""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: Annotated[list[Block], BlockList] = Field([])

    @model_validator(mode="after")
    def _check(self) -> Block:
        check_type(self, "a block", self.type, REQUIRED_FIELDS)
        return self


class Message(Fields):
    """One message. A system message may be at any position."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BlockList, WithJsonSchema(shapes.blocks(MESSAGE_BLOCKS))]


class Tool(Fields):
    """A tool that the client runs. `type`: Anthropic's own tools have no schema, and other models do not know them."""

    type: Literal["custom"] = "custom"
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any]
    defer_loading: bool = False

    def value(self) -> dict[str, Any]:
        """The tool in the form of chat templates, its schema unchanged."""
        description = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **description, "parameters": self.input_schema}}


class ToolChoice(Fields):
    """Which tools may be called."""

    type: Literal["auto", "none"]


class Thinking(Fields):
    """Whether the model thinks before it answers; display "omitted": the thoughts are not shown to the client."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    display: str = "summarized"


class OutputConfig(Fields):
    """effort: how much the model should think, for templates that have such an argument."""

    effort: str | None = None


class Prompt(Fields):
    """The conversation: common to the requests for an answer and for a token count."""

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    system: Annotated[list[Block], BlockList, WithJsonSchema(shapes.blocks({"text": ("text",)}))] = Field([])
    tools: list[Tool] = Field([])
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()

    def chat(self) -> Chat:
        """The conversation and the arguments of the template."""
        tools, held_back = (tuple(tool.value() for tool in self.tools if tool.defer_loading == held) for held in (False, True))
        deferred = DeferredTools(held_back)
        messages = [*self._system(), *(each for message in self.messages for each in _chat_messages(message, deferred))]
        if self.tool_choice.type == "none":
            tools, held_back = (), ()
        args: dict[str, Any] = {} if self.thinking is None else {"enable_thinking": ENABLES_THINKING[self.thinking.type]}
        if self.output_config.effort is not None:
            args["reasoning_effort"] = self.output_config.effort
        return Chat(tuple(messages), tools, args, held_back)

    def _system(self) -> Iterator[dict[str, Any]]:
        blocks = [block for block in self.system if not (block.text or "").startswith(BILLING)]
        if blocks:
            yield {"role": "system", "content": _text(blocks)}


class Request(Prompt, JobFields):
    """A request for a message. `model` may be any name: there is one model."""

    max_tokens: WholeNumber = Field(ge=1)
    stop_sequences: StopStrings = Field([])
    stream: bool = False

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but unused."""
        names = list(self.unknown)
        for name, part in (("tool_choice", self.tool_choice), ("thinking", self.thinking), ("output_config", self.output_config)):
            names += [f"{name}.{each}" for each in (part.unknown if part else ())]
        names += [f"tools.{each}" for tool in self.tools for each in tool.unknown]
        names += [f"system.{each}" for block in self.system for each in block.unknown]
        names += [f"messages.content.{each}" for message in self.messages for block in message.content for each in _unused(block)]
        return tuple(dict.fromkeys(names))


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> ParsedRequest:
    """The request as a Job; sampling that it leaves out is the model's default. Raises BadRequestError that names the field."""
    request = validate(Request, body)
    _check_supported(request)
    job = request.job(request.chat(), info, id=id, tenant=tenant, max_tokens=request.max_tokens, stop=request.stop_sequences)
    shows_reasoning = request.thinking is None or request.thinking.display != "omitted"
    return ParsedRequest(job, request.stream, request.ignored(), shows_reasoning)


def parse_count(body: dict[str, Any]) -> Chat:
    """The conversation to count the tokens of. Raises BadRequestError."""
    request = validate(Prompt, body)
    _check_supported(request)
    return request.chat()


def _check_supported(request: Prompt) -> None:
    refuse(request.unknown, UNSUPPORTED, HINTS)
    if request.output_config.unknown.get("format") is not None:
        raise BadRequestError("output_config.format is not supported yet: answers are free text", param="output_config.format")
    for index, message in enumerate(request.messages):
        _check_blocks(f"messages[{index}]", message.role, message.content)
    _check_blocks("system", "system", request.system)
    if request.messages[-1].role == "assistant":
        hint = "end the conversation with a user message"
        raise BadRequestError("messages: an answer begun by the client (prefill) is not supported", param="messages", hint=hint)


def _check_blocks(where: str, holder: str, blocks: list[Block]) -> None:
    for index, block in enumerate(blocks):
        if block.type not in ALLOWED_BLOCKS[holder]:
            path = f"{where}.content[{index}]"
            raise BadRequestError(f"{path}: a {block.type} block cannot be in a {holder} message", param=path)
        _check_blocks(f"{where}.content[{index}]", block.type, block.content if block.type == "tool_result" else [])


def _chat_messages(message: Message, deferred: DeferredTools) -> Iterator[dict[str, Any]]:
    """The message in the form of chat templates: each tool result becomes a message of its own, at its position."""
    if message.role == "assistant":
        yield _assistant(message.content)
        return
    for is_result, blocks in groupby(message.content, key=lambda block: block.type == "tool_result"):
        if not is_result:
            yield {"role": message.role, "content": _text(blocks)}
            continue
        for block in blocks:
            parts = (deferred.declaration(part.tool_name) if part.tool_name else part.text or "" for part in block.content)
            yield {"role": "tool", "content": "".join(parts), "tool_call_id": block.tool_use_id}


def _assistant(blocks: list[Block]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(blocks)}
    thoughts = [reasoning_of(block.thinking or "", block.signature) for block in blocks if block.type == "thinking"]
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if block.type == "tool_use"
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _text(blocks: Any) -> str:
    """The blocks' text, concatenated: how a client splits its text does not change the prompt."""
    return "".join(block.text or "" for block in blocks if block.type == "text")


def _unused(block: Block) -> Iterator[str]:
    yield from block.unknown
    for part in block.content:
        yield from _unused(part)
