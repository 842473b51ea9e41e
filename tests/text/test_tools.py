"""Values of arguments that arrive as text, by the schemas of their tools."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.text.calls.tools import Tools, value_of

STRING, NUMBER = {"type": "string"}, {"type": "number"}


def parsed(text: str, schema: Any, **root: Any) -> Any:
    """The text as the value of a parameter with this schema."""
    tools = Tools([{"name": "f", "parameters": {"properties": {"p": schema}, **root}}])
    expected = tools.type_of("f", "p")
    return text if expected.is_text else value_of(text, expected)


CASES: list[tuple[Any, str, Any]] = [
    ({"type": "integer", "nullable": True}, "null", None),
    ({"type": "integer", "nullable": True}, "5", 5),
    ({"type": "string", "nullable": True}, "None", None),
    ({"type": "string", "nullable": False}, "null", "null"),
    ({"allOf": [STRING]}, "123", "123"),
    ({"allOf": [{"$ref": "#/$defs/Q"}]}, "123", "123"),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, "12", 12),
    ({"allOf": [{"description": "d"}, {"allOf": [STRING]}]}, "true", "true"),
    ({"allOf": [{"$ref": "#/$defs/Q"}], "nullable": True}, "null", None),
    ({"$ref": "#/$defs/Q", "description": "d"}, "1", "1"),
    ({"$ref": "#/$defs/Loop"}, "1", 1),
    ({"anyOf": [{"$ref": "#/$defs/Q"}, {"type": "null"}]}, "1", "1"),
    ({"type": "array", "items": STRING}, "['a', 'b']", ["a", "b"]),
    ({"type": "array"}, "('a', 1)", ["a", 1]),
    ({"type": "array"}, "[None, True, 'it\\'s']", [None, True, "it's"]),
    ({"type": "array"}, r"['\d']", ["\\d"]),
    ({"type": "array"}, "[f(x)]", "[f(x)]"),
    ({"type": "array"}, "[{1, 2}]", "[{1, 2}]"),
    ({"type": "array"}, "[1e999, -1e999]", [sys.float_info.max, -sys.float_info.max]),
    ({"type": "array"}, "[" * 500, "[" * 500),
    ({"type": "object"}, "{'a': True}", {"a": True}),
    ({"type": "object"}, "{'a': {1: [None]}}", {"a": {"1": [None]}}),
    ({"anyOf": [{"type": "object"}, {"type": "null"}]}, "{'a': 1}", {"a": 1}),
    ({"properties": {"a": STRING}}, "{'a': 'b'}", {"a": "b"}),
    ({"items": STRING}, "['a']", ["a"]),
    ({}, "['a']", "['a']"),
    (STRING, "['a']", "['a']"),
    ({"anyOf": [STRING, NUMBER]}, "1.10", "1.10"),
    ({"anyOf": [STRING, NUMBER]}, "1.1", 1.1),
    ({"oneOf": [NUMBER, STRING]}, "1e3", "1e3"),
    ({"type": ["string", "integer"]}, "5.0", "5.0"),
    ({"type": ["string", "integer"]}, "5", 5),
    ({"type": ["string", "integer"]}, "007", "007"),
    ({}, "3.10", "3.10"),
    (NUMBER, "1.10", 1.1),
    ({"type": "float"}, "1.5", 1.5),
    ({"type": "float"}, "2", 2),
    ({"type": "int"}, "3", 3),
    ({"type": "bool"}, "False", False),
    ({"type": "str"}, "3", "3"),
    ({"type": "Dict[str, Any]"}, "{'a': 1}", {"a": 1}),
    ({"type": "list[str]"}, '["a"]', ["a"]),
    ({"type": "date"}, "2020", "2020"),
    ({"type": "any"}, "5", 5),
    ({"type": ["int", "None"]}, "None", None),
    ({"type": "integer"}, '"5"', 5),
    ({"type": "boolean"}, '"true"', True),
    ({"type": "object"}, '"{\\"a\\": 1}"', {"a": 1}),
    ({"type": "integer"}, '"many"', '"many"'),
    (STRING, '"5"', '"5"'),
    ({"enum": [1, 2]}, "2", 2),
    ({"enum": ["1", 2]}, "1", "1"),
    ({"enum": ["1", 2]}, "2", 2),
    ({"enum": ["auto", 1.1]}, "1.10", 1.1),
    ({"enum": ["true", False]}, "true", "true"),
    ({"enum": ["a", None]}, "null", None),
    ({"const": 5}, "5", 5),
    ({"const": "5"}, "5", "5"),
    ({"anyOf": [{"const": "1"}, {"const": 2}]}, "1", "1"),
    ({"type": "string", "enum": ["1"]}, "1", "1"),
    (5, "5", 5),
    ({"type": 5}, "5", 5),
    ({"allOf": 5, "enum": {}}, "5", 5),
]
DEFS = {"Q": STRING, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]}}


@pytest.mark.parametrize(("schema", "text", "value"), CASES, ids=lambda each: str(each)[:40])
def test_a_text_becomes_the_value_that_the_schema_expects(schema: Any, text: str, value: Any) -> None:
    found = parsed(text, schema, **{"$defs": DEFS})
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("root", "value"),
    [
        ({"additionalProperties": STRING}, "123"),
        ({"properties": {"other": NUMBER}, "additionalProperties": STRING}, "123"),
        ({"additionalProperties": {"$ref": "#/$defs/Q"}, "$defs": DEFS}, "123"),
        ({"patternProperties": {"^p": STRING}}, "123"),
        ({"patternProperties": {"^p": STRING}, "additionalProperties": False}, "123"),
        ({"patternProperties": {"(a+)+$": STRING}, "additionalProperties": NUMBER}, 123),
        ({"allOf": [{"properties": {"p": STRING}}]}, "123"),
        ({"$ref": "#/$defs/P", "$defs": {"P": {"properties": {"p": STRING}}}}, "123"),
        ({"anyOf": [{"$ref": "#"}, {"properties": {"p": STRING}}]}, "123"),
        ({"additionalProperties": True}, 123),
        ({"properties": 5, "patternProperties": 5}, 123),
        (5, 123),
        (None, 123),
    ],
)
def test_a_parameter_has_the_schema_that_the_tool_has_for_it(root: Any, value: Any) -> None:
    assert value_of("123", Tools([{"name": "f", "parameters": root}]).type_of("f", "p")) == value
    assert value_of("123", Tools([]).type_of("f", "p")) == 123


def test_a_schema_that_refers_to_itself_often_is_read_at_once() -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}, {"$ref": "#/$defs/A"}] * 50}
    assert parsed("5", {"$ref": "#/$defs/A"}, **{"$defs": {"A": loop, "B": loop}, "allOf": [{"$ref": "#"}] * 50}) == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.booleans())
def test_lists_and_dicts_are_read_as_json_and_as_python_write_them(value: Any, is_python: bool) -> None:
    schema = {"type": "array" if isinstance(value, list) else "object"}
    assert parsed(repr(value) if is_python else json.dumps(value), schema) == value


@given(st.text(max_size=12) | st.from_regex(r"\A-?[0-9]{0,4}\.?[0-9]{0,4}(e[0-9])?\Z"))
def test_where_a_string_may_stand_no_number_is_written_otherwise(text: str) -> None:
    value = parsed(text, {"type": ["string", "number", "integer"]})
    assert value == text or json.dumps(value) == text.strip()


@given(
    st.text(max_size=12), st.recursive(st.just(STRING), lambda inner: st.builds(lambda each: {"allOf": [each, {}]}, inner), max_leaves=4)
)
def test_a_string_is_its_text(text: str, schema: Any) -> None:
    assert parsed(text, schema) == text
