"""Which tools an answer calls: `tool_choice` and its companions, in the forms of all dialects, to a CallRule.

Pure. Knows no tool, only names. Sources: OpenAI's and Anthropic's API references.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.errors import BadRequestError
from forerun.values import CallRule, OutputFormat

PARAM = "tool_choice"
CHOICE_HINT = "'auto', 'none', 'required', a tool by its name, or 'allowed_tools'"


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """The tools that may be called. strict: names of those whose schema is strict. inputs: formats of the input of custom tools."""

    names: Collection[str]
    strict: frozenset[str] = frozenset()
    inputs: Mapping[str, OutputFormat] | None = None


def call_rule(choice: Any, tools: DeclaredTools, *, is_parallel: bool = True) -> CallRule:
    """The rule of a request with these tools. is_parallel: False where it allows one call only. Raises BadRequestError.

    A function or custom tool that is chosen by name is called once, as OpenAI has it; Anthropic's `tool` is called as often as the model
    likes.
    """
    is_required, allowed = _read(choice)
    if is_required and not (tools.names if allowed is None else allowed):
        raise BadRequestError("tool_choice: a call is required, but no tool is declared", param=PARAM, hint="send 'tools'")
    if missing := [name for name in allowed or () if name not in tools.names]:
        raise BadRequestError(f"tool_choice: no tool {missing[0]!r:.200} is declared", param=PARAM, hint="name one of 'tools'")
    if not tools.names or choice == "none":
        return CallRule()
    is_single = isinstance(choice, dict) and choice["type"] in ("function", "custom")
    return CallRule(is_required, allowed, is_parallel and not is_single, tools.strict, tools.inputs or {})


def names_one(rule: CallRule) -> bool:
    """Whether one tool was chosen by its name, and is called once."""
    return rule.is_required and not rule.is_parallel and rule.allowed is not None and len(rule.allowed) == 1


def _read(choice: Any) -> tuple[bool, tuple[str, ...] | None]:
    """Whether a call is required, and the names of the tools that may be called, None for all."""
    match choice:
        case "auto" | "none" | {"type": "auto" | "none"}:
            return False, None
        case "required" | "any" | {"type": "required" | "any"}:
            return True, None
        case {"type": "function" | "custom" | "tool"} if name := _name(choice):
            return True, (name,)
        case {"type": "allowed_tools", "allowed_tools": dict(inner)} | ({"type": "allowed_tools"} as inner):
            return _read_allowed(inner)
    raise BadRequestError(f"tool_choice: {choice!r:.200} is not supported", param=PARAM, hint=CHOICE_HINT)


def _read_allowed(choice: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """Tools without a name are run by the provider, and not declared here."""
    match choice:
        case {"mode": "auto" | "required" as mode, "tools": list(tools)}:
            return mode == "required", _names(tools)
    raise BadRequestError("tool_choice: allowed_tools has a mode, 'auto' or 'required', and a list of tools", param=PARAM)


def _names(tools: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for tool in tools if isinstance(tool, dict) and (name := _name(tool))))


def _name(tool: Mapping[str, Any]) -> str:
    """The name of a tool, beside its type (Responses, Anthropic) or inside (chat); "" if it has none."""
    inner = tool.get(str(tool.get("type")))
    name = inner.get("name") if isinstance(inner, dict) else tool.get("name")
    return name if isinstance(name, str) else ""
