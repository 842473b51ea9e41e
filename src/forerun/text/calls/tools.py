"""The parameter types of a request's tools, and conversion of text to them. Knows JSON schema; no dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Types = frozenset[str]
ANY: Types = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))
CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
MAX_DEPTH = 8  # of references and alternatives: a schema may refer to itself


class Tools:
    """The tools of a request, declared as in OpenAI's chat dialect."""

    def __init__(self, declared: Sequence[Mapping[str, Any]]) -> None:
        functions = [each.get("function", each) for each in declared]
        self._parameters = {each.get("name"): each.get("parameters") for each in functions}

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def types(self, name: str, parameter: str) -> Types:
        """The JSON types that the parameter may have; all where the schema names none."""
        root = self._parameters.get(name)
        properties = root.get("properties") if isinstance(root, Mapping) else None
        if not isinstance(properties, Mapping) or parameter not in properties:
            return ANY
        return _types(properties[parameter], root, MAX_DEPTH)


def value_of(text: str, types: Types) -> Any:
    """The text as a value of one of the types, preferring others to a string; the text itself where none fits."""
    value = _parsed(text.strip())
    if isinstance(value, str):
        return text
    if isinstance(value, float) and value.is_integer() and "number" not in types:
        value = int(value)
    return value if _kind(value) in types or (_kind(value) == "integer" and "number" in types) else text


def _types(schema: Any, root: Any, depth: int) -> Types:
    if not isinstance(schema, Mapping) or depth == 0:
        return ANY
    if "$ref" in schema:
        return _types(_resolved(schema["$ref"], root), root, depth - 1)
    if "type" in schema:
        declared = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return frozenset(each for each in declared if isinstance(each, str)) or ANY
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            return frozenset().union(*(_types(each, root, depth - 1) for each in schema[name]))
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return (frozenset(map(_kind, allowed)) if isinstance(allowed, list) else frozenset()) or ANY


def _resolved(reference: Any, root: Any) -> Any:
    """What a reference inside the schema points to; None for any other reference."""
    node = root
    for step in str(reference).removeprefix("#/").split("/"):
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node


def _parsed(text: str) -> Any:
    """The text parsed as JSON, or as Python's True, False, None; the text itself if neither."""
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (Mapping, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "array")
