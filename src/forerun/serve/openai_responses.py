"""The OpenAI Responses dialect: a request's JSON to a Job. `openai_responses_answer.py` writes the response.

Pure, and stateless: a request has its whole conversation, as items. They become the messages that a chat client would send. A known
field that would change the answer and is not supported is an error; any other is accepted and, if unused, named as ignored. Knows no
engine, no HTTP and no tokens. Source: OpenAI's API reference, Responses; what Codex sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from forerun.errors import BadRequestError
from forerun.serve.deferred_tools import DeferredTools
from forerun.serve.fields import Fields, JobFields, WholeNumber, check_type, join_text, refuse, validate
from forerun.serve.openai_responses_answer import ParsedRequest
from forerun.serve.openai_responses_items import DeclaredTool
from forerun.values import Chat, LogprobsRequest, ModelInfo

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "previous_response_id": (),
    "prompt": (),
    "moderation": (),
}
HINTS = dict.fromkeys(("previous_response_id", "conversation"), "this server stores no responses: send the whole conversation as input")
LOGPROBS = "message.output_text.logprobs"  # in `include`
# Types of the parts of content that are text.
TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
REQUIRED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "tool_search_call": ("call_id", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call_output": ("call_id", "output"),
    "tool_search_output": ("call_id", "tools"),
}
CALLS = frozenset({"function_call", "custom_tool_call", "tool_search_call"})


def _join_text(content: Any) -> Any:
    return join_text(content, TEXTS)


def _as_items(value: Any) -> Any:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


Text = Annotated[str | None, BeforeValidator(_join_text, json_schema_input_type=str | list[dict[str, Any]] | None)]


class Item(Fields):
    """One item of a conversation, of any supported type. Its `id` and `status` have no effect."""

    type: str = "message"
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Text = None
    summary: Text = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: Text = None
    tools: list[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _check(self) -> Item:
        check_type(self, "an item", self.type, REQUIRED_FIELDS)
        return self


class ReasoningFields(Fields):
    """effort: how much the model should think. summary: if set, thoughts are sent as a summary, which most clients show."""

    effort: str | None = None
    summary: str | None = None


class TextFields(Fields):
    """The format of the answer."""

    format: dict[str, Any] = Field(default={"type": "text"})


class Request(JobFields):
    """A request for a response. `model` may be any name: there is one model."""

    model: str | None = None
    input: Annotated[list[Item], BeforeValidator(_as_items, json_schema_input_type=str | list[dict[str, Any]])] = Field(min_length=1)
    instructions: str | None = None
    tools: list[dict[str, Any]] = Field([])
    tool_choice: Any = "auto"
    max_output_tokens: WholeNumber | None = Field(None, ge=1)
    stream: bool = False
    reasoning: ReasoningFields = ReasoningFields()
    text: TextFields = TextFields()
    metadata: dict[str, str] = Field({})
    store: bool = False
    include: list[str] = Field([])
    top_logprobs: WholeNumber | None = Field(None, ge=0, le=20)

    @property
    def logprobs(self) -> LogprobsRequest | None:
        """The logprobs that either field requests."""
        is_requested = LOGPROBS in self.include or self.top_logprobs is not None
        return LogprobsRequest(self.top_logprobs or 0, of_prompt=False) if is_requested else None

    def ignored(self) -> tuple[str, ...]:
        """Fields that are accepted but unused."""
        names = [name for name in self.unknown if name not in UNSUPPORTED]
        names += ["store"] * self.store + [f"include.{each}" for each in self.include if each != LOGPROBS]
        names += [f"reasoning.{each}" for each in self.reasoning.unknown] + [f"text.{each}" for each in self.text.unknown]
        names += [f"tools.{tool['type']}" for tool in self.tools if tool["type"] == "web_search"]
        names += [f"input.{each}" for item in self.input for each in item.unknown]
        return tuple(dict.fromkeys(names))


def parse(body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> ParsedRequest:
    """The request as a Job; sampling that it leaves out is the model's default. Raises BadRequestError that names the field."""
    request = validate(Request, body)
    _check_supported(request)
    listed, found = dict(_declarations(request.tools)), dict(_declarations(_found_tools(request)))
    job = request.job(
        _chat(request, listed, found), info, id=id, tenant=tenant, max_tokens=request.max_output_tokens, logprobs=request.logprobs
    )
    echo = {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata,
        "reasoning": {"effort": request.reasoning.effort, "summary": request.reasoning.summary},
        "temperature": job.sampling.temperature,
        "tool_choice": request.tool_choice,
        "top_p": job.sampling.top_p,
    }
    return ParsedRequest(job, request.stream, request.ignored(), request.reasoning.summary is not None, found | listed, echo)


def _check_supported(request: Request) -> None:
    if request.tool_choice not in ("auto", "none"):
        raise BadRequestError(f"tool_choice: {request.tool_choice!r} is not supported", param="tool_choice", hint="'auto' and 'none' are")
    if request.text.format.get("type") != "text":
        raise BadRequestError("text.format is not supported yet: answers are free text", param="text.format")
    refuse(request.unknown, UNSUPPORTED, HINTS)


def _declarations(tools: list[dict[str, Any]]) -> Iterator[tuple[str, DeclaredTool]]:
    """The tools that the model may call, by name, in the form of templates. A namespace's tools are called by their own names."""
    for index, tool in enumerate(tools):
        match tool:
            case {"type": "function", "name": str(name)}:
                yield name, DeclaredTool("function", None, _function(tool, tool.get("parameters") or {}))
            case {"type": "custom", "name": str(name)}:
                yield name, DeclaredTool("custom", None, _function(tool, FREE_TEXT))
            case {"type": "namespace", "name": str(namespace), "tools": list(inner)}:
                yield from ((name, DeclaredTool(each.kind, namespace, each.tool)) for name, each in _declarations(inner))
            case {"type": "tool_search", "execution": "client"}:
                named = dict(tool) | {"name": "tool_search"}
                yield "tool_search", DeclaredTool("tool_search", None, _function(named, tool.get("parameters") or {}))
            case {"type": "web_search"}:
                continue  # the provider runs it; every request of Codex has it
            case _:
                kind = tool.get("type") if isinstance(tool, dict) else tool
                raise BadRequestError(f"tools[{index}]: {kind!r} is not supported, or lacks a name", param=f"tools[{index}]")


FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def _function(tool: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    description = {"description": tool["description"]} if isinstance(tool.get("description"), str) else {}
    return {"type": "function", "function": {"name": tool["name"], **description, "parameters": parameters}}


def _found_tools(request: Request) -> list[dict[str, Any]]:
    return [tool for item in request.input if item.type == "tool_search_output" for tool in item.tools or []]


def _chat(request: Request, listed: Mapping[str, DeclaredTool], found: Mapping[str, DeclaredTool]) -> Chat:
    messages: list[dict[str, Any]] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
    for item in request.input:
        _add(messages, item)
    tools, held_back = (() if request.tool_choice == "none" else tuple(each.tool for each in of.values()) for of in (listed, found))
    args = {} if request.reasoning.effort is None else {"reasoning_effort": request.reasoning.effort}
    return Chat(tuple(messages), tools, args, held_back)


def _add(messages: list[dict[str, Any]], item: Item) -> None:
    """Add an item to the conversation: the model's consecutive items become one message."""
    if item.type == "reasoning":
        message = _assistant(messages, but_not=("content", "reasoning_content", "tool_calls"))
        message["reasoning_content"] = item.content or item.summary or ""
    elif item.type in CALLS:
        _assistant(messages, but_not=()).setdefault("tool_calls", []).append(_call(item))
    elif item.type == "tool_search_output":
        messages.append({"role": "tool", "content": _declared(item.tools or []), "tool_call_id": item.call_id})
    elif item.type.endswith("_output"):
        messages.append({"role": "tool", "content": item.output or "", "tool_call_id": item.call_id})
    elif item.role == "assistant":
        _assistant(messages, but_not=("content", "tool_calls"))["content"] = item.content
    else:
        messages.append({"role": "system" if item.role == "developer" else item.role, "content": item.content})


def _assistant(messages: list[dict[str, Any]], *, but_not: tuple[str, ...]) -> dict[str, Any]:
    """The last message if it is the assistant's and has none of these fields, otherwise a new one."""
    if not messages or messages[-1]["role"] != "assistant" or any(messages[-1].get(name) for name in but_not):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(item: Item) -> dict[str, Any]:
    name = "tool_search" if item.type == "tool_search_call" else item.name
    arguments = {"input": item.input} if item.type == "custom_tool_call" else item.arguments
    return {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _declared(tools: list[dict[str, Any]]) -> str:
    """The declarations of tools that a search has found, for its result."""
    found = dict(_declarations(tools))
    deferred = DeferredTools(each.tool for each in found.values())
    return "".join(map(deferred.declaration, found))
