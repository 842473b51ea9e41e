"""What a call format needs to write the grammar of its calls, in llguidance's Lark. Knows no library: the writer is in grammar/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from forerun.text.calls.schema import ParameterType, Schema

Path = tuple[str | int, ...]


class Opening(NamedTuple):
    """A text that opens a call in free text. open: which of the format's `opens` it begins with. is_first: only at the start of the text or
    after another call.
    """

    text: str
    open: str
    is_first: bool = False


class RuleWriter(Protocol):
    """Writes rules. Each method returns an expression that stands for what it is asked for."""

    def literal(self, text: str) -> str:
        """The text. What of it is a special token is that token."""

    def rule(self, body: str) -> str:
        """A rule with this body."""

    def json(self, schema: Any, path: Path) -> str:
        """A JSON value that is valid under the schema, which stands at this path of the tool's parameters."""

    def text(self, terms: Sequence[str], without: Sequence[str], end: str, path: Path) -> str:
        """Text that matches all of these regular expressions (none of those that begin with ~), with nothing in it that matches one of the
        others; then the text `end`. path: of its schema.
        """

    def pattern(self, pattern: Any, path: Path) -> str | None:
        """A JSON schema's pattern as an expression of the whole text; None if it cannot be enforced."""

    def nested(self, grammar: str) -> str:
        """What a grammar in Lark allows."""

    def drop(self, path: Path, why: str) -> None:
        """What stands at the path is not enforced. Raises BadRequestError where it must be."""

    def define(self, name: str, body: str) -> str:
        """A rule of this name, which its body may refer to."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool to write a rule for. parameters: its JSON schema, any if it has none. input_grammar: of its one argument, in Lark, "" if
    the schema alone holds that.
    """

    name: str
    parameters: Mapping[str, Any]
    input_grammar: str = ""

    @property
    def schema(self) -> Schema:
        return Schema(self.parameters)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The schema of its arguments: an object, of those that are named if any are and it does not say otherwise."""
        closed = {"additionalProperties": False} if self.parameters.get("properties") else {}
        return {"type": "object", **closed, **self.parameters}

    def properties(self) -> Iterator[Property]:
        """Its parameters in the order in which they are written: that of the schema; then those that are required alone."""
        root = self._root()
        named = root.get("properties") if isinstance(root.get("properties"), Mapping) else {}
        required = [name for name in root.get("required") or () if isinstance(name, str)]
        expected, other = self.schema, root.get("additionalProperties")
        for name, schema in (named or {}).items():
            yield Property(name, schema, name in required, expected.type_of(name), ("properties", name))
        for name in dict.fromkeys(required):
            if name not in (named or {}):
                yield Property(name, other if isinstance(other, Mapping) else {}, True, expected.type_of(name), ("required",))

    @property
    def takes_any(self) -> bool:
        """Whether it names no parameters, and takes others."""
        root = self._root()
        return not root.get("properties") and root.get("additionalProperties") is not False and "properties" not in root

    def definitions(self) -> Mapping[str, Any]:
        """What references in a part of its schema point to."""
        return {name: self.parameters[name] for name in ("$defs", "definitions") if name in self.parameters}

    def _root(self) -> Mapping[str, Any]:
        """The schema whose properties are the parameters: the root, a reference followed, and parts that all hold merged."""
        root = merged(self.parameters, self.schema, 8)
        return root if root.get("properties") or not any(name in root for name in ("anyOf", "oneOf")) else _any_of(root, self.schema)

    @property
    def unheld(self) -> Iterator[str]:
        """Keywords of the root that rules of single parameters cannot hold."""
        root = merged(self.parameters, self.schema, 8)
        held = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description", "$schema", "$id"}
        checked = ("anyOf", "oneOf", "not", "if", "then", "else", "minProperties", "maxProperties", "patternProperties", "propertyNames")
        return (name for name in root if name not in held and (name in checked or name.startswith("dependent")))


class Property(NamedTuple):
    """A parameter. expected: as the parser takes it. path: in the tool's parameters."""

    name: str
    schema: Any
    is_required: bool
    expected: ParameterType
    path: Path


def merged(schema: Any, context: Schema, depth: int) -> dict[str, Any]:
    """An object's schema with its reference followed, and the parts of its allOf in it."""
    if not isinstance(schema, Mapping) or depth == 0:
        return {}
    whole = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
    others = schema["allOf"] if isinstance(schema.get("allOf"), list) else []
    for part in [*([context.resolve(str(schema["$ref"]))] if "$ref" in schema else []), *others]:
        found = merged(part, context, depth - 1)
        properties = {**(found.get("properties") or {}), **(whole.get("properties") or {})}
        required = [*(found.get("required") or ()), *(whole.get("required") or ())]
        whole = {**found, **whole, **({"properties": properties} if properties else {}), **({"required": required} if required else {})}
    return whole


def _any_of(root: Mapping[str, Any], context: Schema) -> dict[str, Any]:
    """All parameters of an object's alternatives: those that all alternatives require are required."""
    parts = [merged(part, context, 8) for name in ("anyOf", "oneOf") if isinstance(root.get(name), list) for part in root[name]]
    properties = {name: schema for part in parts for name, schema in (part.get("properties") or {}).items()}
    required = [name for name in properties if all(name in (part.get("required") or ()) for part in parts)]
    return {**root, **({"properties": properties} if properties else {}), "required": required}
