"""The tools of the OpenAI Responses dialect: those that the model may call, and those that only the provider runs. Pure.

Knows the dialect's forms of a tool; knows no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from forerun.errors import BadRequestError
from forerun.serve.custom_tools import FREE_TEXT, function, input_format
from forerun.serve.openai_responses_items import DeclaredTool
from forerun.serve.tool_choice import DeclaredTools


def declarations(tools: list[dict[str, Any]]) -> Iterator[tuple[str, DeclaredTool]]:
    """The tools that the model may call, by name, in the form of templates. A namespace's tools are called by their own names."""
    for index, tool in enumerate(tools):
        match tool:
            case {"type": "function", "name": str(name)}:
                is_strict = tool.get("strict") is True
                yield name, DeclaredTool("function", None, function(tool, tool.get("parameters") or {}), is_strict)
            case {"type": "custom", "name": str(name)}:
                found = input_format(tool.get("format"), f"tools[{index}].format")
                yield name, DeclaredTool("custom", None, function(tool, FREE_TEXT), input=found)
            case {"type": "namespace", "name": str(namespace), "tools": list(inner)}:
                yield from ((name, replace(each, namespace=namespace)) for name, each in declarations(inner))
            case {"type": "tool_search", "execution": "client"}:
                named = dict(tool) | {"name": "tool_search"}
                yield "tool_search", DeclaredTool("tool_search", None, function(named, tool.get("parameters") or {}))
            case {"type": str(kind)} if _is_hosted(kind, tool):
                continue
            case _:
                given = tool.get("type") if isinstance(tool, dict) else tool
                raise BadRequestError(f"tools[{index}]: {given!r} is not supported, or lacks a name", param=f"tools[{index}]")


def _is_hosted(kind: str, tool: Mapping[str, Any]) -> bool:
    """Whether only the provider can run the tool, or knows how it is called, as `web_search`, which every request of Codex has."""
    return kind not in ("function", "custom", "namespace") and not (kind == "tool_search" and tool.get("execution") == "client")


def hosted(tools: list[dict[str, Any]]) -> Iterator[str]:
    """The types of such tools, those in namespaces included."""
    for tool in tools:
        kind = tool["type"]
        yield from [kind] if _is_hosted(kind, tool) else hosted(tool["tools"] if kind == "namespace" else [])


def callable_tools(declared: Mapping[str, DeclaredTool]) -> DeclaredTools:
    """What the choice of a tool depends on."""
    strict = frozenset(name for name, tool in declared.items() if tool.is_strict)
    return DeclaredTools(declared, strict, {name: tool.input for name, tool in declared.items() if tool.input})
