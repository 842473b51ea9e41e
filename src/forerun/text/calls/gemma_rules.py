"""The grammar of a call's arguments as Gemma writes them: as JSON, but with keys as they are, and strings between quote tags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.text.calls.rules import Path, RuleWriter, ToolSchema, merged
from forerun.text.calls.schema import Schema
from forerun.text.calls.text_rules import texts_of

KEY = re.compile(r"[^\s,:{}\[\]<\"]+")
MAX_DEPTH = 12
EMPTY = '""'
NUMBERS = {"type": ["number", "boolean", "null"]}
Field = tuple[str, Any, bool, Path]


class GemmaRules:
    """Writes the arguments of one tool. quote: the tag on either side of a string."""

    def __init__(self, writer: RuleWriter, tool: ToolSchema, quote: str) -> None:
        self._writer, self._tool, self._quote = writer, tool, quote
        self._context: Schema = tool.schema

    def arguments(self) -> str:
        """The object of all arguments."""
        for name in self._tool.unheld:
            self._writer.drop((name,), "it is not held for all arguments together")
        if self._tool.input_grammar:
            quote = self._writer.literal(self._quote)
            return f'"{{input:" {quote} {self._writer.nested(self._tool.input_grammar)} {quote} "}}"'
        if self._tool.takes_any:
            return self._any_object()
        return self._object([(each.name, each.schema, each.is_required, each.path) for each in self._tool.properties()], 0)

    def _object(self, fields: Sequence[Field], depth: int) -> str:
        """Fields in this order, those that are not required left out or not, with commas between."""
        first, rest = '""', '""'
        for name, schema, is_required, path in reversed([field for field in fields if self._can_be_key(*field)]):
            field = self._writer.rule(f"{self._writer.literal(f'{name}:')} {self._value(schema, path, depth + 1)}")
            first = self._writer.rule(f"{field} {rest}" + ("" if is_required else f" | {first}"))
            rest = self._writer.rule(f'"," {field} {rest}' + ("" if is_required else f" | {rest}"))
        return f'"{{" {first} "}}"'

    def _can_be_key(self, name: str, schema: Any, is_required: bool, path: Path) -> bool:
        if not KEY.fullmatch(name) and is_required:
            self._writer.drop(path, "no argument can have this name")
        return bool(KEY.fullmatch(name))

    def _value(self, schema: Any, path: Path, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return self._any_value()
        schema = merged(schema, self._context, 8) if "$ref" in schema or "allOf" in schema else schema
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list):
                rest = {key: value for key, value in schema.items() if key != name}
                return self._one_of([self._value({**rest, **each}, (*path, name, i), depth + 1) for i, each in enumerate(schema[name])])
        if "enum" in schema or "const" in schema:
            return self._constants(schema.get("enum", [schema.get("const")]))
        types = schema["type"] if isinstance(schema.get("type"), list) else [schema["type"]] if "type" in schema else []
        return (
            self._one_of([self._typed(schema, str(each), path, depth) for each in types]) if types else self._untyped(schema, path, depth)
        )

    def _untyped(self, schema: Mapping[str, Any], path: Path, depth: int) -> str:
        implied = {"properties": "object", "items": "array", "pattern": "string"}
        kind = next((kind for name, kind in implied.items() if name in schema), "")
        return self._typed(schema, kind, path, depth) if kind else self._any_value()

    def _typed(self, schema: Mapping[str, Any], kind: str, path: Path, depth: int) -> str:
        match kind:
            case "string":
                texts = texts_of(self._writer, {**schema, "type": "string"}, self._context, path, 1)
                return self._one_of([self._string(terms, path) for terms, _ in texts])
            case "array":
                return self._array(schema, path, depth)
            case "object" if schema.get("properties") or schema.get("required"):
                required, named = schema.get("required") or (), schema.get("properties") or {}
                other = schema.get("additionalProperties", {})
                every = {**named, **{name: other for name in required if name not in named}}
                return self._object([(name, each, name in required, (*path, "properties", name)) for name, each in every.items()], depth)
            case "object":
                return self._map(schema, path, depth)
            case "integer" | "number" | "boolean" | "null":
                return self._writer.json({**schema, "type": kind}, path)
        return self._any_value()

    def _map(self, schema: Mapping[str, Any], path: Path, depth: int) -> str:
        """An object without names of its own: all its values have one schema."""
        other = schema.get("additionalProperties")
        if other is False:
            return '"{" "}"'
        if not isinstance(other, Mapping):
            return self._any_object()
        value = self._value(other, (*path, "additionalProperties"), depth + 1)
        field = self._writer.rule(f'{self._writer.define("KEY", f"/{KEY.pattern}/")} ":" {value}')
        return f'"{{" ( {field} ( "," {field} )* )? "}}"'

    def _array(self, schema: Mapping[str, Any], path: Path, depth: int) -> str:
        firsts = schema["prefixItems"] if isinstance(schema.get("prefixItems"), list) else []
        rules = [self._value(each, (*path, "prefixItems", i), depth + 1) for i, each in enumerate(firsts)]
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if schema.get("items") is False:
            most = min(len(rules), len(rules) if most is None else most)
        item = self._writer.rule(self._value(schema.get("items"), (*path, "items"), depth + 1))
        return f'"[" {self._items(rules, item, least, most)} "]"'

    def _items(self, firsts: Sequence[str], item: str, least: int, most: int | None) -> str:
        """At least and at most so many items, the first of them by rules of their own."""
        if most == 0:
            return '""'
        num = len(firsts) or 1
        first, *others = firsts or [item]
        is_full = most is not None and most <= num
        rule = "" if is_full else f'( "," {item} ){{{max(0, least - num)},{"" if most is None else int(most) - num}}}'
        for i, other in reversed(list(enumerate(others, start=2))):
            rule = "" if most is not None and i > most else f'( "," {other} {rule} ){"" if i <= least else "?"}'
        return f"{first} {rule}" if least else f"( {first} {rule} )?"

    def _constants(self, values: Sequence[Any]) -> str:
        """One of the values: the quotes are written once for all strings, which can be thousands."""
        texts, others = [each for each in values if isinstance(each, str)], [each for each in values if not isinstance(each, str)]
        quote = self._writer.literal(self._quote)
        strings = [f"{quote} {self._one_of([self._writer.literal(each) or EMPTY for each in texts])} {quote}"] if texts else []
        return self._one_of([*strings, *map(self._constant, others)])

    def _constant(self, value: Any) -> str:
        if isinstance(value, Mapping):
            return self._object([(name, {"const": each}, True, ()) for name, each in value.items()], 0)
        if isinstance(value, list):
            return self._array({"prefixItems": [{"const": each} for each in value], "items": False, "minItems": len(value)}, (), 0)
        return self._writer.json({"const": value}, ())

    def _string(self, terms: Sequence[str], path: Path) -> str:
        return f"{self._writer.literal(self._quote)} {self._writer.text(terms, [re.escape(self._quote)], self._quote, path)}"

    def _one_of(self, rules: Sequence[str]) -> str:
        return f"( {' | '.join(rules)} )"

    def _any_value(self) -> str:
        numbers = self._writer.json(NUMBERS, ())
        self._writer.define("any_list", '"[" ( any_value ( "," any_value )* )? "]"')
        return self._writer.define("any_value", f"{self._string((), ())} | {numbers} | any_list | {self._any_object()}")

    def _any_object(self) -> str:
        key = self._writer.define("KEY", f"/{KEY.pattern}/")
        self._writer.define("any_field", f'{key} ":" any_value')
        name = self._writer.define("any_object", '"{" ( any_field ( "," any_field )* )? "}"')
        if not self._is_defined:
            self._is_defined = True
            self._any_value()
        return name

    _is_defined = False
