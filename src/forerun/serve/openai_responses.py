"""The OpenAI Responses dialect: a request's JSON to a Job. `openai_responses_answer.py` writes the response.

Pure. A request's items, after those of the responses that it continues, become the messages that a chat client would send. A known
field that would change the answer and is not supported is an error; any other is accepted and, if unused, named as ignored. Knows no
engine, no HTTP and no tokens. Source: OpenAI's API reference, Responses; what Codex sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field, ModelWrapValidatorHandler, model_validator

from forerun.errors import BadRequestError
from forerun.serve.content import ContentField, MessageContent, left_out
from forerun.serve.deferred_tools import declaration
from forerun.serve.fields import Fields, JobFields, Limit, ToolChoice, WholeNumber, check_required, refuse, validate
from forerun.serve.formats import format_of
from forerun.serve.openai_responses_answer import ParsedRequest
from forerun.serve.openai_responses_items import DeclaredTool
from forerun.serve.openai_responses_tools import callable_tools, declarations, hosted
from forerun.serve.tool_choice import call_rule
from forerun.values import Chat, LogprobsRequest, ModelInfo

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "conversation": (),
    "prompt": (),
    "moderation": (),
}
HINTS = {"conversation": "continue a response by previous_response_id, or send the whole conversation as input"}
LOGPROBS = "message.output_text.logprobs"  # in `include`
# Required fields of an item, by type. Items of other types are left out, except calls with a result, which the client ran.
REQUIRED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "message": ("role",),
    "reasoning": (),
    "function_call": ("call_id", "name"),
    "custom_tool_call": ("call_id", "name"),
    "tool_search_call": ("call_id",),
    "function_call_output": ("call_id",),
    "custom_tool_call_output": ("call_id",),
    "tool_search_output": ("call_id",),
}
# Items that stand for content which only the provider can read, and what the user can do.
COMPACTED = "start a new conversation, or send the items that were compacted; compact with a request for a summary instead"
UNREADABLE: Mapping[str, str] = {
    **dict.fromkeys(("compaction", "compaction_summary", "context_compaction"), COMPACTED),
    "item_reference": "no stored response has an item of this id: send the item itself",
}
CALLS = frozenset({"function_call", "custom_tool_call", "tool_search_call"})


def _as_items(value: Any) -> Any:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


def _own_item(item: dict[str, Any]) -> dict[str, Any]:
    """An item that is none of ours: one of a call that the client runs, such as a shell's, as a function's; of any other the type alone."""
    kind, call_id = item["type"], item.get("call_id")
    result_id = call_id or item.get("id")  # a local shell's result has the call's id there
    if kind in REQUIRED_FIELDS:
        return {"type": f"{kind}.server", "note": left_out(kind)}
    own = {"call_id": call_id, "note": f"{kind}: rendered as a function's"}
    if kind.endswith("_call_output") and result_id is not None:
        output = item.get("output")
        return own | {"type": "function_call_output", "call_id": result_id, "output": [output] if isinstance(output, dict) else output}
    if kind.endswith("_call") and call_id is not None:
        arguments = {name: value for name, value in item.items() if name in ("action", "operation", "arguments")}
        return own | {"type": "function_call", "name": kind.removesuffix("_call"), "arguments": arguments}
    return {"type": kind, "note": left_out(kind)}


class Item(Fields):
    """One item of a conversation. Its `id` and `status` have no effect. note: on its type, which clients do not set."""

    type: str = "message"
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: ContentField = None
    summary: ContentField = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: ContentField = None
    tools: list[dict[str, Any]] | None = None
    note: str = ""

    @model_validator(mode="wrap")
    @classmethod
    def _parse(cls, value: Any, handler: ModelWrapValidatorHandler[Item]) -> Item:
        if not isinstance(value, dict):
            return handler(value)
        kind = value.get("type") or "message"
        is_own = isinstance(kind, str) and (kind not in REQUIRED_FIELDS or value.get("execution") == "server")
        item = handler(_own_item(value) if is_own else value | {"note": ""})
        check_required(item, "an item", item.type, REQUIRED_FIELDS)
        if item.type == "message" and item.role != "assistant" and item.content is None:
            raise ValueError("an item of type 'message' needs 'content'")
        return item

    @property
    def is_left_out(self) -> bool:
        """Whether it is of a call that the provider ran, or of an unknown type."""
        return self.type not in REQUIRED_FIELDS

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not rendered as it was sent."""
        of_content = (note for each in (self.content, self.summary, self.output) if each for note in each.notes)
        return (*filter(None, [self.note]), *of_content)


class ReasoningFields(Fields):
    """effort: how much the model should think. summary: if set, thoughts are sent as a summary, which most clients show. max_tokens: the
    limit of the thoughts.
    """

    effort: str | None = None
    summary: str | None = None
    max_tokens: Limit = None


class TextFields(Fields):
    """The format of the answer."""

    format: dict[str, Any] = Field(default={"type": "text"})


class Request(JobFields):
    """A request for a response. `model` may be any name: there is one model."""

    model: str | None = None
    input: Annotated[list[Item], FailFast(), BeforeValidator(_as_items, json_schema_input_type=str | list[dict[str, Any]])] = Field(
        min_length=1
    )
    instructions: str | None = None
    tools: list[dict[str, Any]] = Field([])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: Limit = None
    stream: bool = False
    reasoning: ReasoningFields = ReasoningFields()
    text: TextFields = TextFields()
    metadata: dict[str, str] = Field({})
    store: bool | None = None
    background: bool = False
    previous_response_id: str | None = None
    include: list[str] = Field([])
    top_logprobs: WholeNumber | None = Field(None, ge=0, le=20)

    @property
    def logprobs(self) -> LogprobsRequest | None:
        """The logprobs that either field requests."""
        is_requested = LOGPROBS in self.include or self.top_logprobs is not None
        return LogprobsRequest(self.top_logprobs or 0, of_prompt=False) if is_requested else None

    @property
    def is_stored(self) -> bool:
        """Whether the response is to be stored: unless the request says otherwise, or leaves no trace in the bank either."""
        return self.forerun.bank == "use" if self.store is None else self.store

    @property
    def limit(self) -> int | None:
        """The limit on the answer's tokens; 0 and below are none."""
        return self.max_output_tokens if (self.max_output_tokens or 0) > 0 else None

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but unused."""
        names = [name for name in self.unknown if name not in UNSUPPORTED]
        names += [f"include.{each}" for each in self.include if each != LOGPROBS]
        names += [f"reasoning.{each}" for each in self.reasoning.unknown] + [f"text.{each}" for each in self.text.unknown]
        names += [f"tools.{kind}" for kind in hosted(self.tools)]
        names += [f"input.{each}" for item in self.input for each in ([item.type] if item.is_left_out else item.unknown)]
        return tuple(dict.fromkeys(names))


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str, previous: Iterable[Mapping[str, Any]] = ()) -> ParsedRequest:
    """The request as a Job; sampling that it leaves out is the model's default. previous: items of the responses that it continues. Raises
    BadRequestError that names the field.
    """
    own = validate(Request, body)
    _check_supported(own)
    request = own.model_copy(update={"input": [*map(Item.model_validate, previous), *own.input]})
    listed, found = dict(declarations(request.tools)), dict(declarations(_found_tools(request)))
    job = request.job(
        _chat(request, listed, found),
        info,
        id=id,
        tenant=tenant,
        max_tokens=request.limit,
        logprobs=request.logprobs,
        output=format_of(request.text.format, "text.format"),
        calls=call_rule(request.tool_choice, callable_tools(found | listed), is_parallel=request.parallel_tool_calls),
        thinking_tokens=request.reasoning.max_tokens,
    )
    echo = {
        "background": request.background,
        "instructions": request.instructions,
        "max_output_tokens": request.limit,
        "metadata": request.metadata,
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": request.reasoning.effort, "summary": request.reasoning.summary},
        "store": request.is_stored,
        "temperature": job.sampling.temperature,
        "text": {"format": request.text.format},
        "tool_choice": request.tool_choice,
        "top_p": job.sampling.top_p,
    }
    return ParsedRequest(job, request.stream, own.ignored(), request.reasoning.summary is not None, found | listed, echo)


def _check_supported(request: Request) -> None:
    refuse(request.unknown, UNSUPPORTED, HINTS)
    if request.background and not request.is_stored:
        raise BadRequestError("background: its response has to be stored", param="background", hint="set store to true, or leave it out")
    for index, item in enumerate(request.input):
        if hint := UNREADABLE.get(item.type):
            message = f"input[{index}]: what is in an item of type {item.type!r} can be read only where it was made"
            raise BadRequestError(message, param=f"input[{index}]", hint=hint)


def _found_tools(request: Request) -> list[dict[str, Any]]:
    return [tool for item in request.input if item.type == "tool_search_output" for tool in item.tools or []]


def _chat(request: Request, listed: Mapping[str, DeclaredTool], found: Mapping[str, DeclaredTool]) -> Chat:
    messages: list[dict[str, Any]] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
    for item in request.input:
        _add(messages, item)
    if not messages:
        raise BadRequestError("input: none of its items can be rendered", param="input", hint="add a message of the user's")
    notes = dict.fromkeys(note for item in request.input for note in item.notes)
    tools, held_back = (() if request.tool_choice == "none" else tuple(each.tool for each in of.values()) for of in (listed, found))
    args = {} if request.reasoning.effort is None else {"reasoning_effort": request.reasoning.effort}
    return Chat(tuple(messages), tools, args, held_back, tuple(notes))


def _add(messages: list[dict[str, Any]], item: Item) -> None:
    """Add an item to the conversation: the model's consecutive items become one message."""
    text = (item.content or MessageContent()).text
    if item.is_left_out:
        return
    if item.type == "reasoning":
        message = _assistant(messages, but_not=("content", "reasoning_content", "tool_calls"))
        message["reasoning_content"] = text or (item.summary or MessageContent()).text
    elif item.type in CALLS:
        _assistant(messages, but_not=()).setdefault("tool_calls", []).append(_call(item))
    elif item.type == "tool_search_output":
        messages.append({"role": "tool", "content": _declared(item.tools or []), "tool_call_id": item.call_id})
    elif item.type.endswith("_output"):
        messages.append({"role": "tool", "content": (item.output or MessageContent()).text, "tool_call_id": item.call_id})
    elif item.role == "assistant":
        message = _assistant(messages, but_not=("content", "tool_calls"))
        message["content"] = text
        if item.content and item.content.reasoning:
            message.setdefault("reasoning_content", item.content.reasoning)
    else:
        messages.append({"role": "system" if item.role == "developer" else item.role, "content": text})


def _assistant(messages: list[dict[str, Any]], *, but_not: tuple[str, ...]) -> dict[str, Any]:
    """The last message if it is the assistant's and has none of these fields, otherwise a new one."""
    if not messages or messages[-1]["role"] != "assistant" or any(messages[-1].get(name) for name in but_not):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(item: Item) -> dict[str, Any]:
    name = "tool_search" if item.type == "tool_search_call" else item.name
    arguments = {"input": item.input or ""} if item.type == "custom_tool_call" else item.arguments or {}
    return {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _declared(tools: list[dict[str, Any]]) -> str:
    """The declarations of tools that a search has found, for its result."""
    found = {name: declared.tool for name, declared in declarations(tools)}
    return "".join(declaration(name, found) for name in found)
