"""What a tool's JSON schema expects of each parameter. Knows no dialect and no text of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Types = frozenset[str]
ANY: Types = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))
OTHER_NAMES = {
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    **dict.fromkeys(("list", "tuple"), "array"),
    "bool": "boolean",
    "dict": "object",
    "none": "null",
}
IMPLIED = {"properties": "object", "items": "array"}  # by keywords of a schema without a type
MAX_DEPTH = 16  # of references and alternatives


class ParameterType(NamedTuple):
    """What a schema expects. types: the JSON types that a value may have. constants: its enum or const, if it has one."""

    types: Types
    constants: tuple[Any, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether any text is a value as it stands."""
        return self.types == {"string"}


ANYTHING = ParameterType(ANY)


class Schema:
    """The schema of a tool's parameters. Each reference is followed once: it may refer to itself."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._followed: dict[str, ParameterType] = {}
        self._properties = list(self._find_properties(root, set(), MAX_DEPTH))

    def declares(self, parameter: str) -> bool:
        """Whether the schema names the parameter."""
        return any(parameter in each for each in self._properties)

    def type_of(self, parameter: str) -> ParameterType:
        """What is expected of the parameter: anything where there is no schema. One that is not named has the schema of additional ones.
        Their patterns are not matched against the name: a client's pattern may take forever.
        """
        named = [self._type(each[parameter], MAX_DEPTH) for each in self._properties if parameter in each]
        return _all(named) if named else self._additional()

    def _additional(self) -> ParameterType:
        root = self._root if isinstance(self._root, Mapping) else {}
        patterns = root.get("patternProperties")
        schemas = [*(patterns.values() if isinstance(patterns, Mapping) else ()), root.get("additionalProperties")]
        return _any([self._type(each, MAX_DEPTH) for each in schemas if isinstance(each, Mapping)])

    def _type(self, schema: Any, depth: int) -> ParameterType:
        """What a schema expects: what each of its keywords does."""
        if not isinstance(schema, Mapping) or depth == 0:
            return ANYTHING
        parts = [_declared(schema)]
        if "$ref" in schema:
            parts.append(self._follow(str(schema["$ref"]), depth - 1))
        for name, combine in (("allOf", _all), ("anyOf", _any), ("oneOf", _any)):
            if isinstance(schema.get(name), list):
                parts.append(combine([self._type(each, depth - 1) for each in schema[name]]))
        types, constants = _all(parts)
        return ParameterType(types | {"null"} if schema.get("nullable") is True else types, constants)

    def _follow(self, reference: str, depth: int) -> ParameterType:
        if reference not in self._followed:
            self._followed[reference] = ANYTHING
            self._followed[reference] = self._type(self.resolve(reference), depth)
        return self._followed[reference]

    def _find_properties(self, schema: Any, followed: set[str], depth: int) -> Iterable[Mapping[str, Any]]:
        """The properties that a schema has by itself, or by the schemas that it is made of."""
        if not isinstance(schema, Mapping) or depth == 0:
            return
        if isinstance(schema.get("properties"), Mapping):
            yield schema["properties"]
        parts = [each for name in ("allOf", "anyOf", "oneOf") if isinstance(schema.get(name), list) for each in schema[name]]
        reference = str(schema.get("$ref", ""))
        if reference and reference not in followed:
            followed.add(reference)
            parts.append(self.resolve(reference))
        for part in parts:
            yield from self._find_properties(part, followed, depth - 1)

    def resolve(self, reference: str) -> Any:
        """What a reference inside the schema points to; None for any other reference."""
        node = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        return node


def kind_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (Mapping, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "array")


def _declared(schema: Mapping[str, Any]) -> ParameterType:
    """By type, enum and const; where there are none, by keywords that only one type has."""
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    constants = tuple(allowed) if isinstance(allowed, list) else ()
    names = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    types = frozenset[str]().union(*(_named(name) for name in names if isinstance(name, str)))
    implied = frozenset(kind for name, kind in IMPLIED.items() if name in schema)
    return ParameterType(types or frozenset(map(kind_of, constants)) or implied or ANY, constants)


def _named(name: str) -> Types:
    """The types of a name: JSON schema's or another language's, `list[str]` among them; a string where it is neither."""
    plain = name.lower().partition("[")[0].strip()
    kind = OTHER_NAMES.get(plain, plain)
    return ANY if kind == "any" else frozenset((kind if kind in ANY else "string",))


def _all(parts: Sequence[ParameterType]) -> ParameterType:
    """What fits all. One that contradicts those before it does not count."""
    types, constants = ANYTHING
    for part in parts:
        types, constants = types & part.types or types, constants or part.constants
    return ParameterType(types, constants)


def _any(parts: Sequence[ParameterType]) -> ParameterType:
    """What fits one of them; anything if there are none."""
    types = frozenset[str]().union(*(part.types for part in parts))
    return ParameterType(types or ANY, tuple(constant for part in parts for constant in part.constants))
