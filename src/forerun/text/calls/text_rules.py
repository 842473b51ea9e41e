"""Rules of values that are written as plain text: what of a JSON schema a text must match, so that it comes back as a valid value.

The other way round is `value_of`. Knows no format's tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forerun.text.calls.rules import Path, Property, RuleWriter, ToolSchema
from forerun.text.calls.schema import ANY, Schema

Terms = tuple[str, ...]
MAX_DEPTH = 8  # of references and alternatives
MAX_ALTERNATIVES = 32
MOST_LENGTH = 2000  # of text that is counted: what a grammar costs to compile grows with it
ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "format"))
OTHERS = ["number", "boolean", "null", "object", "array"]
# Texts that `value_of` may take for something else than a string where another type is expected too.
CONSTANT = r"(?s:\s*(?i:true|false|null|none)\s*)"
NUMBER = r"(?s:\s*-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*)"
NESTED = r"(?s:\s*[\[{(].*)"
DAY = "(0[1-9]|[12][0-9]"
DATE = f"[0-9]{{4}}-((0[13578]|1[02])-{DAY}|3[01])|(0[469]|11)-{DAY}|30)|02-{DAY}))"
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{OCTET}(\.{OCTET}){{3}}",
    "hostname": rf"{LABEL}(\.{LABEL}){{0,7}}",
    "email": rf"[a-zA-Z0-9_+\-]+(\.[a-zA-Z0-9_+\-]+)*@{LABEL}(\.{LABEL}){{0,7}}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.\-]*:[a-zA-Z0-9\-._~:/?#@!$&'()*+,;=%]+",
}


def value_rules(writer: RuleWriter, tool: ToolSchema, each: Property, without: Sequence[str], end: str) -> str:
    """The value of a parameter as text, with nothing of `without` in it, then `end`."""
    if isinstance(each.schema, Mapping) and not (each.schema.keys() - ANNOTATIONS):
        return writer.text((), without, end, each.path)
    rules, types = [], each.expected.types
    if "string" in types:
        is_text, parsed = each.expected.is_text, _parsed(types)
        for terms, is_constant in texts_of(writer, each.schema, tool.schema, each.path, MAX_DEPTH)[:MAX_ALTERNATIVES]:
            rules.append(writer.text([*terms, *(() if is_text or is_constant else parsed)], without, end, each.path))
    if types != {"string"}:
        other = _without_strings(each.schema, tool.schema, MAX_DEPTH) if "string" in types else each.schema
        if other is not None:
            part = {**tool.definitions(), **other} if isinstance(other, Mapping) else other
            rules.append(f"{writer.json(part, each.path)} {writer.literal(end)}")
    return f"( {' | '.join(rules)} )" if rules else writer.text((), without, end, each.path)


def _parsed(types: frozenset[str]) -> list[str]:
    """Terms that exclude (by their ~) texts that would be taken for another type."""
    return [f"~{each}" for each in (CONSTANT, NUMBER, *((NESTED,) if types & {"object", "array"} else ()))]


def texts_of(writer: RuleWriter, schema: Any, context: Schema, path: Path, depth: int) -> list[tuple[Terms, bool]]:
    """Alternatives of what a string may be: all terms of one must match; and whether it is one of a few constants."""
    if not isinstance(schema, Mapping) or depth == 0:
        return [((), False)] if schema is not False else []
    own = _own_texts(writer, schema, path)
    parts: list[list[tuple[Any, Path]]] = []
    if "$ref" in schema:
        parts.append([(context.resolve(str(schema["$ref"])), (*path, "$ref"))])
    parts += [[(each, (*path, "allOf", i))] for i, each in enumerate(_list(schema, "allOf"))]
    parts += [[(each, (*path, name, i)) for i, each in enumerate(_list(schema, name))] for name in ("anyOf", "oneOf") if name in schema]
    for alternatives in parts:
        others = [text for each, at in alternatives for text in texts_of(writer, each, context, at, depth - 1)]
        own = [((*one, *other), is_one or is_other) for one, is_one in own for other, is_other in others][: MAX_ALTERNATIVES + 1]
    if len(own) > MAX_ALTERNATIVES:
        writer.drop(path, "too many alternatives of text")
        return [((), False)]
    return own


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    return schema[name] if isinstance(schema.get(name), list) else []


def _own_texts(writer: RuleWriter, schema: Mapping[str, Any], path: Path) -> list[tuple[Terms, bool]]:
    """What the schema's own keywords demand of a string."""
    types = schema["type"] if isinstance(schema.get("type"), list) else [schema["type"]] if "type" in schema else ["string"]
    if all(str(each).lower() in (*OTHERS, "integer") for each in types):
        return []
    terms = list(_terms(writer, schema, path))
    constants = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(constants, list):
        texts = [each for each in constants if isinstance(each, str)]
        return [((*terms, "|".join(map(escaped, texts))), True)] if texts else []
    return [(tuple(terms), False)]


def _terms(writer: RuleWriter, schema: Mapping[str, Any], path: Path) -> Iterator[str]:
    if "pattern" in schema and (term := writer.pattern(schema["pattern"], (*path, "pattern"))) is not None:
        yield term
    least, most = (_count(schema.get(name)) for name in ("minLength", "maxLength"))
    least = least or 0
    for name, length in (("minLength", least), ("maxLength", most or 0)):
        if length > MOST_LENGTH:
            writer.drop((*path, name), f"the length of text is held up to {MOST_LENGTH:,} characters")
    least, most = min(least, MOST_LENGTH), None if (most or 0) > MOST_LENGTH else most
    if least or most is not None:
        yield f"(?s:.{{{least},{'' if most is None else most}}})"
    if (kind := schema.get("format")) is not None:
        if kind in FORMATS:
            yield FORMATS[kind]
        else:
            writer.drop((*path, "format"), f"unknown format of text: {kind}")


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None


def _without_strings(schema: Any, context: Schema, depth: int) -> Any:
    """The schema of its values that are no strings; None if there are none."""
    if not isinstance(schema, Mapping) or depth == 0:
        return {"type": OTHERS} if schema is not False else None
    if "$ref" in schema:
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        return _without_strings({**rest, "allOf": [context.resolve(str(schema["$ref"])), *_list(schema, "allOf")]}, context, depth - 1)
    types = schema["type"] if isinstance(schema.get("type"), list) else [schema["type"]] if "type" in schema else OTHERS
    left: dict[str, Any] = {**schema, "type": [each for each in types if each != "string"]}
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            parts = [_without_strings(each, context, depth - 1) for each in _list(schema, name)]
            left[name] = [each for each in parts if each is not None]
            if not left[name] or (name == "allOf" and None in parts):
                return None
    if isinstance(schema.get("enum"), list):
        left["enum"] = [each for each in schema["enum"] if not isinstance(each, str)]
    if isinstance(schema.get("const"), str) or left.get("enum") == [] or not left["type"]:
        return None
    return left


def escaped(text: str) -> str:
    """A regular expression of the text alone."""
    return re.sub(r"[^\w\s]|[\n\r\t]", lambda char: f"\\x{{{ord(char[0]):x}}}", text)


def is_any(each: Property) -> bool:
    """Whether every text is a value as it stands."""
    return each.expected.types == ANY and not each.expected.constants
