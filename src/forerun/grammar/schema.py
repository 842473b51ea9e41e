"""JSON schemas as llguidance takes them: read within bounds, and where one holds what cannot be enforced, the path of that.

Knows which keywords hold schemas; which are supported is asked of llguidance. White space between the parts of JSON is bounded: a model
that likes line breaks would write them for ever.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

from forerun.errors import BadRequestError
from forerun.grammar.program import LIMITS

MOST_SCHEMA_CHARS = 1 << 20
MOST_DEPTH = 100  # of JSON; llguidance reads 127
MOST_ENTRIES = {"properties": 1000, "enum": 5000}  # more take seconds to compile, or llguidance's whole stack
MOST_DROPPED = 16
SEARCH_S = 0.4  # for the path of what is refused
WHITE_SPACE = r"(\r?\n[ \t]{0,64}|[ \t]{1,4})"
NAMED = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties")
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Enforceable:
    """A schema that llguidance takes. dropped: paths of what was left out for that."""

    schema: Any
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """What llguidance refuses. path: of the keyword, or of the schema if no single keyword is at fault."""

    path: Path
    message: str


def read_schema(text: str, param: str) -> Any:
    """The schema. Raises BadRequestError (not JSON, too large, nested too deeply)."""
    if len(text) > MOST_SCHEMA_CHARS:
        raise BadRequestError(f"a schema of {len(text):,} characters: at most {MOST_SCHEMA_CHARS:,} can be enforced", param=param)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{param} is not JSON, or is nested too deeply: {error}", param=param) from error
    check_size(schema, param)
    return schema


def check_size(schema: Any, param: str) -> int:
    """The number of its properties and constants. Raises BadRequestError where it is nested too deeply or has too many of them in all,
    naming the path.
    """
    level: list[tuple[Path, Any]] = [((), schema)]
    nums = dict.fromkeys(MOST_ENTRIES, 0)
    for _ in range(MOST_DEPTH):
        for path, node in level:
            name = str(path[-1]) if path else ""
            if name in nums and isinstance(node, Mapping | list):
                nums[name] += len(node)
                if nums[name] > MOST_ENTRIES[name]:
                    place = f"{written((param, *path))}: {nums[name]:,} entries of {name} in all"
                    raise BadRequestError(f"{place}, at most {MOST_ENTRIES[name]:,} can be held", param=param)
        level = [((*path, key), value) for path, node in level for key, value in _items(node)]
    if level:
        raise BadRequestError(f"{written((param, *level[0][0][:6]))}... is nested deeper than {MOST_DEPTH} levels", param=param)
    return sum(nums.values())


def _items(node: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, list):
        yield from enumerate(node)


def enforceable(schema: Any, *, is_strict: bool, param: str) -> Enforceable:
    """The schema as llguidance takes it. Raises BadRequestError, naming the path of what it does not; unless strict, that is left out."""
    current, dropped = schema_for(schema, is_strict=is_strict), list[str]()
    until_s = time.monotonic() + SEARCH_S
    while fault := find_fault(current, until_s):
        is_droppable = bool(fault.path) and isinstance(fault.path[-1], str)
        if not is_strict and (len(dropped) >= MOST_DROPPED or time.monotonic() > until_s):
            current, is_droppable = schema_for(current, is_strict=False, is_lenient=True), False
            fault = Fault(fault.path, error_of(current))
        if fault.message and (is_strict or not is_droppable):
            place = written((param, *fault.path))
            raise BadRequestError(f"{place} cannot be enforced: {fault.message}", param=param, hint="leave it out")
        if not fault.message:
            break
        dropped.append(written(fault.path))
        current = without(current, fault.path)
    return Enforceable(current, (*dropped, *warned(current)))


def schema_for(schema: Any, *, is_strict: bool, is_lenient: bool = False) -> Any:
    """The schema with options for llguidance. Unless strict, oneOf is held as anyOf; lenient: keywords are ignored that are not known."""
    if not isinstance(schema, Mapping):
        return schema
    options = {"whitespace_pattern": WHITE_SPACE, "lenient": is_lenient, "coerce_one_of": not is_strict}
    return {**{name: value for name, value in schema.items() if name != "x-guidance"}, "x-guidance": options}


def error_of(schema: Any) -> str:
    """Why llguidance refuses the schema, "" if it does not."""
    is_error, messages = LLMatcher.validate_grammar_with_warnings(lark_of(schema), limits=LIMITS)
    return reason(messages[0]) if is_error else ""


def lark_of(schema: Any) -> str:
    """A grammar of the schema alone."""
    return LLMatcher.grammar_from_lark(f"start: %json {json.dumps(schema)}")


def reason(message: str) -> str:
    """What matters of an error of llguidance: without the grammar that it repeats."""
    before, _, after = re.split(r"\n +\d+ \| ", message)[0].partition("failed to compile JSON schema: ")
    return " ".join((after or before).split())[:300]


def warned(schema: Any) -> list[str]:
    """What llguidance holds only in part, in its words."""
    return LLMatcher.validate_grammar_with_warnings(lark_of(schema), limits=LIMITS)[1]


def find_fault(schema: Any, until_s: float) -> Fault | None:
    """What llguidance refuses of the schema; None if it takes it. The path is as near as can be found in time."""
    message = error_of(schema)
    if not message:
        return None
    if path := _known_place(schema, message):
        return Fault(path, message)
    node = schema
    while found := _faulty_part(node, schema, until_s):
        step, node, message = found
        path = (*path, *step)
    return Fault((*path, *_faulty_keyword(node, schema, until_s)), message)


def _known_place(schema: Any, message: str) -> Path:
    """Where the keyword stands that the message names, () if it names none. Trying each part of a schema by itself takes longer."""
    keys = re.match(r'Unimplemented keys: \["([^"]*)"', message)
    value = re.match(r"(?:Unknown|Invalid) (format|type): (.*)", message)
    name = keys[1] if keys else value[1] if value else ""
    for path, node in _all_parts(schema):
        if isinstance(node, Mapping) and name in node and (keys or (value and str(node[name]) == value[2])):
            return (*path, name)
    return ()


def _all_parts(schema: Any) -> Iterator[tuple[Path, Any]]:
    """A schema and all that it is made of, with their paths."""
    yield (), schema
    for step, part in parts(schema):
        yield from (((*step, *path), node) for path, node in _all_parts(part))


def _faulty_part(node: Any, root: Any, until_s: float) -> tuple[Path, Any, str] | None:
    for step, part in parts(node):
        if time.monotonic() > until_s:
            return None
        if message := error_of(_alone(part, root)):
            return step, part, message
    return None


def _faulty_keyword(node: Any, root: Any, until_s: float) -> Path:
    """The keyword without which the schema is taken."""
    for name in sorted(node, key=lambda name: name == "type") if isinstance(node, Mapping) else ():
        if time.monotonic() > until_s:
            break
        rest = {key: value for key, value in node.items() if key != name}
        if name not in ("x-guidance", "$defs", "definitions") and not error_of(_alone(rest, root)):
            return (name,)
    return ()


def _alone(part: Any, root: Any) -> Any:
    """A part of a schema as a schema of its own, with the definitions that it may refer to."""
    if not isinstance(part, Mapping) or not isinstance(root, Mapping):
        return part
    return {**{name: root[name] for name in ("$defs", "definitions", "x-guidance") if name in root}, **part}


def parts(node: Any) -> Iterator[tuple[Path, Any]]:
    """The schemas that a schema is made of, and their paths in it."""
    if not isinstance(node, Mapping):
        return
    for name in NAMED:
        yield from (((name, key), part) for key, part in (node.get(name) or {}).items() if isinstance(node.get(name), Mapping))
    for name in LISTS:
        yield from (((name, i), part) for i, part in enumerate(node[name] if isinstance(node.get(name), list) else ()))
    yield from (((name,), node[name]) for name in SINGLE if isinstance(node.get(name), Mapping))


def without(node: Any, path: Path) -> Any:
    """A copy without what is at the path."""
    step, *rest = path
    if isinstance(node, Mapping):
        return {key: without(value, tuple(rest)) if key == step else value for key, value in node.items() if rest or key != step}
    return [without(value, tuple(rest)) if i == step else value for i, value in enumerate(node) if rest or i != step]


def written(path: Path) -> str:
    """a.b[0].c"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
