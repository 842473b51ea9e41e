"""Hostile schemas: each is refused with the path of what is at fault, or served, within a second of a slow core."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.grammar.answers import compiled
from tests.grammar.call_answers import FORMATS, calls_of, tool

from forerun.errors import BadRequestError
from forerun.values import CallRule

FIELD = r"response_format\.json_schema\.schema"
MOST_S = 5.0  # of a core, whatever else the machine does; the benchmark shows less than one
NUM_MASKS = 20


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def of(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": keywords}, "required": ["a"]}


REFUSED: dict[str, tuple[Any, str]] = {
    "deep": (nested(60), r"\.properties\.a\.properties.* nested deeper"),
    "very deep": (json.loads('{"not":' * 900 + "true" + "}" * 900), "nested"),
    "look-around": (of(type="string", pattern="(?=a)b"), r"\.properties\.a\.pattern"),
    "broken pattern": (of(type="string", pattern="(a"), r"\.properties\.a\.pattern"),
    "back reference": (of(type="string", pattern=r"(a)\1"), r"\.properties\.a\.pattern"),
    "remote reference": (of(**{"$ref": "https://example.com/schema"}), r"\.properties\.a\.\$ref"),
    "dangling reference": (of(**{"$ref": "#/$defs/none"}), r"\.properties\.a\.\$ref"),
    "overlapping oneOf": (of(oneOf=[{"type": "integer"}, {"type": "number"}]), r"\.properties\.a\.oneOf"),
    "not": (of(**{"not": {"type": "string"}}), r"\.properties\.a\.not"),
    "uniqueItems": (of(type="array", uniqueItems=True), r"\.properties\.a\.uniqueItems"),
    "unknown format": (of(type="string", format="shape"), r"\.properties\.a\.format"),
    "contradiction": (of(type="integer", minimum=5, maximum=2), r"\.properties\.a"),
    "false": (False, FIELD),
    "odd type": (of(type="text"), r"\.properties\.a\.type"),
}
EITHER: dict[str, Any] = {
    "enum of 5,000": {"enum": [f"value {i}" for i in range(5_000)]},
    "enum of 50,000": {"enum": [f"value {i}" for i in range(50_000)]},
    "1,000 properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1_000)}},
    "10,000 properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10_000)}},
    "10,000 required": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10_000)}, "required": ["p9999"]},
    "maxLength": of(type="string", maxLength=10**9),
    "minLength": of(type="string", minLength=10**9),
    "minItems": of(type="array", minItems=10**7),
    "nested repeats": of(type="string", pattern="^((a{1,100}){1,100}){1,100}$"),
    "stars": of(type="string", pattern="^(((a*)*)*)*$"),
    "alternatives": of(type="string", pattern="^(" + "|".join(f"x{i}y" for i in range(5000)) + ")*$"),
    "intersections": of(allOf=[{"type": "string", "pattern": f"^.*{chr(97 + i)}.{{{i + 5}}}$"} for i in range(12)]),
    "endless reference": {"$ref": "#"},
    "references to each other": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "wide and deep": {
        "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(20)} | {"d20": {"type": "null"}},
        "$ref": "#/$defs/d0",
    },
    "products of allOf": {
        "allOf": [{"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {"type": "null"}}} for j in range(8)]} for i in range(8)]
    },
}


def served(schema: Any, *, is_strict: bool = True) -> None:
    """Compile it and make masks, as far as it can be."""
    matcher = compiled(schema, is_strict=is_strict, args={"enable_thinking": False}).matcher()
    for _ in range(NUM_MASKS):
        mask = matcher.allowed()
        assert mask is not None
        matcher.accept(int(mask.nonzero()[0][0]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_named_with_its_path(name: str) -> None:
    schema, path = REFUSED[name]
    started_s = time.process_time()
    with pytest.raises(BadRequestError, match=path) as raised:
        served(schema)
    assert raised.value.param == "response_format.json_schema.schema"
    assert time.process_time() - started_s < MOST_S


@pytest.mark.parametrize("name", EITHER)
@pytest.mark.parametrize("is_strict", [True, False])
def test_a_hostile_schema_is_refused_or_served_in_time(name: str, is_strict: bool) -> None:
    started_s = time.process_time()
    try:
        served(EITHER[name], is_strict=is_strict)
    except BadRequestError as refused:
        is_named = refused.param is not None
    else:
        is_named = True
    assert is_named
    assert time.process_time() - started_s < MOST_S


@pytest.mark.parametrize("call_format", FORMATS)
@pytest.mark.parametrize("name", [*EITHER, *REFUSED])
def test_a_hostile_tool_does_not_break_calls(name: str, call_format: str) -> None:
    """What of it cannot be held is reported; a strict one is refused."""
    schema = EITHER[name] if name in EITHER else REFUSED[name][0]
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    for strict in (frozenset[str](), frozenset(["use"])):
        started_s = time.process_time()
        try:
            matcher = calls_of(FORMATS[call_format], [tool("use", parameters)], CallRule(is_required=True, strict=strict))[0].matcher()
            matcher.allowed()
        except BadRequestError as refused:
            is_named = refused.param is not None
        else:
            is_named = True
        assert is_named
        assert time.process_time() - started_s < MOST_S
