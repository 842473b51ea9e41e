"""JSON schemas for the OpenAPI document, of the parts of a request that stay raw JSON: texts, tools, calls.

They describe only; the dialects check these parts, with messages of their own. Knows no dialect's rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import WithJsonSchema


def _function(required: list[str], **properties: Any) -> dict[str, Any]:
    """A function of a chat, with these properties and its name."""
    function = {"type": "object", "required": required, "properties": {"name": {"type": "string"}, **properties}}
    return {"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"}, "function": function}}


_CUSTOM = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "format": {"type": "object"}}}
_CUSTOM_TOOL = {"type": "object", "required": ["type", "custom"], "properties": {"type": {"const": "custom"}, "custom": _CUSTOM}}
TOOL = WithJsonSchema({"anyOf": [_function(["name"], description={"type": "string"}, parameters={"type": "object"}), _CUSTOM_TOOL]})
CALL = WithJsonSchema(_function(["name"], arguments={"anyOf": [{"type": "string"}, {"type": "object"}]}))
SCHEMA = WithJsonSchema({"type": ["object", "string", "null"]})
# An assistant message may consist of calls alone, and a tool's result may be empty; any other has content and no calls.
HAS_CONTENT: dict[str, Any] = {
    "anyOf": [
        {"properties": {"role": {"const": "assistant"}}},
        {"properties": {"role": {"const": "tool"}, "tool_calls": {"maxItems": 0}}},
        {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}, "tool_calls": {"maxItems": 0}}},
    ]
}


def blocks(needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A string, or a list of blocks of these types, each with its required fields."""
    kinds = [{"type": "object", "required": ["type", *names], "properties": _properties(kind, names)} for kind, names in needs.items()]
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": kinds}}]}


def _properties(kind: str, names: Sequence[str]) -> dict[str, Any]:
    """All fields of a block are strings but `input`."""
    return {"type": {"const": kind}} | {name: {"type": "object" if name == "input" else "string"} for name in names}
