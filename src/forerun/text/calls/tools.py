"""The tools of a request, and conversion of text to the types of their parameters. Knows no dialect."""

from __future__ import annotations

import ast
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.text.calls.schema import ANY, ANYTHING, ParameterType, Schema, Types, kind_of

CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


class Tools:
    """The tools of a request, declared as in OpenAI's chat dialect. parameters: the JSON schema of each by its name, as it was sent."""

    def __init__(self, declared: Sequence[Mapping[str, Any]]) -> None:
        functions = [each.get("function", each) for each in declared]
        self._schemas = {each.get("name"): Schema(each.get("parameters")) for each in functions}
        self.parameters = {each["name"]: each.get("parameters") for each in functions if isinstance(each.get("name"), str)}

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def declares(self, name: str, parameter: str) -> bool:
        """Whether there is such a tool, and its schema names the parameter."""
        return name in self._schemas and self._schemas[name].declares(parameter)

    def type_of(self, name: str, parameter: str) -> ParameterType:
        """What the tool expects of a parameter."""
        return self._schemas[name].type_of(parameter) if name in self._schemas else ANYTHING


def value_of(text: str, expected: ParameterType) -> Any:
    """The text as a value that is expected, preferring other types to a string; the text itself where none fits.

    Where a string may stand, a number must be written as JSON writes it: 1.10 stays text. Where none may, a quoted string is taken for
    what it quotes.
    """
    value = _parsed(text.strip(), is_python=expected.types != ANY and not expected.types.isdisjoint(("object", "array")))
    for constant in expected.constants:
        if constant == text or (kind_of(constant) == kind_of(value) and constant == value):
            return constant
    if isinstance(value, str):
        return text if "string" in expected.types else _unquoted(text, value, expected)
    if isinstance(value, float) and value.is_integer() and "number" not in expected.types:
        value = int(value)
    is_rewritten = kind_of(value) in ("integer", "number") and json.dumps(value) != text.strip()
    return text if not _fits(value, expected.types) or (is_rewritten and "string" in expected.types) else value


def _unquoted(text: str, quoted: str, expected: ParameterType) -> Any:
    value = value_of(quoted, expected) if quoted != text.strip() else text
    return text if isinstance(value, str) else value


def _fits(value: Any, types: Types) -> bool:
    return kind_of(value) in types or (kind_of(value) == "integer" and "number" in types)


def _parsed(text: str, *, is_python: bool) -> Any:
    """The text parsed as JSON, as Python's True, False, None, or if is_python as its lists and dicts; the text itself if neither."""
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    try:
        value = json.loads(text, parse_float=_finite)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return _python(text) if is_python and text.startswith(("[", "{", "(")) else text
    return value


def _finite(text: str) -> float:
    """A number; the largest one for any beyond, which JSON may name and no client can hold."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _python(text: str) -> Any:
    """The text parsed as a list or dict as Python writes it; the text itself if it is none, or holds what JSON cannot."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of unknown escapes in strings
            return json.loads(json.dumps(ast.literal_eval(text), allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
