"""Custom tools, whose one argument is text: declared to the model as functions with one parameter, and called as custom tools again.

Pure. Knows the forms of OpenAI's two dialects, and no template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.errors import BadRequestError
from forerun.serve.fields import arguments_of
from forerun.values import OutputFormat

FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def function(tool: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the form of chat templates, from its name and description."""
    description = {"description": tool["description"]} if isinstance(tool.get("description"), str) else {}
    return {"type": "function", "function": {"name": tool["name"], **description, "parameters": parameters}}


def input_format(format: Any, param: str) -> OutputFormat | None:
    """The grammar of a custom tool's input, None for any text. The grammar is in `grammar` (chat) or beside the type (Responses).

    One that cannot be enforced is named in the report: agents declare some with every request. Raises BadRequestError.
    """
    match format:
        case None | {"type": "text"}:
            return None
        case {"type": "grammar", "grammar": {"syntax": "lark" | "regex" as syntax, "definition": str(text)}}:
            return OutputFormat(syntax, text, False, param)
        case {"type": "grammar", "syntax": "lark" | "regex" as syntax, "definition": str(text)}:
            return OutputFormat(syntax, text, False, param)
    hint = "'text', or 'grammar' with a syntax, 'lark' or 'regex', and a definition"
    raise BadRequestError(f"{param}: {format!r:.200} is no format of an input", param=param, hint=hint)


def input_of(arguments: str) -> str:
    """The input in a call's arguments; if the call does not use the one declared parameter, all that the model wrote."""
    value = arguments_of(arguments).get("input")
    return value if isinstance(value, str) else arguments
