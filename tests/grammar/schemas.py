"""Schemas over all keywords that are held, in the manner of the JSON-Schema-Test-Suite: each with what its answers are checked against."""

from __future__ import annotations

from typing import Any

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
SHORT = {"type": "string", "maxLength": 6}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object of these properties alone."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


SCHEMAS: dict[str, Any] = {
    "any": {},
    "true": True,
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "array": {"type": "array"},
    "object": {"type": "object"},
    "types": {"type": ["integer", "null", "boolean"]},
    "types with string": {"type": ["string", "null"]},
    "enum": {"enum": ["red", "green", 3, None, True]},
    "enum of objects": {"enum": [{"a": 1}, [1, 2], "x"]},
    "const": {"const": "fixed"},
    "const number": {"const": 2.5},
    "const object": {"const": {"a": [1, None]}},
    "empty constant": {"enum": ["", "a"]},
    "minimum": {"type": "integer", "minimum": 10},
    "maximum": {"type": "integer", "maximum": -3},
    "range": {"type": "integer", "minimum": 5, "maximum": 17},
    "exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
    "number range": {"type": "number", "minimum": 0.5, "maximum": 1.5},
    "number exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multipleOf": {"type": "integer", "multipleOf": 5},
    "multipleOf in a range": {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 30},
    "maxLength": {"type": "string", "maxLength": 5},
    "minLength": {"type": "string", "minLength": 4, "maxLength": 9},
    "length zero": {"type": "string", "maxLength": 0},
    "pattern": {"type": "string", "pattern": "^[a-f]{2,4}$"},
    "pattern within": {"type": "string", "pattern": "[0-9]{2}"},
    "pattern either": {"type": "string", "pattern": "^(ab|cd)+$"},
    "pattern with slash": {"type": "string", "pattern": "^/[a-z]+/[a-z]*$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "email": {"type": "string", "format": "email"},
    "items": {"type": "array", "items": {"type": "integer"}},
    "minItems": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "no items": {"type": "array", "maxItems": 0},
    "prefixItems": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 3}],
        "items": False,
        "minItems": 2,
    },
    "prefixItems and more": {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "maxItems": 4},
    "nested arrays": {"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 2}, "maxItems": 3},
    "properties": POINT,
    "optional properties": closed(["b"], a={"type": "integer"}, b={"type": "boolean"}, c=SHORT),
    "no properties": {"type": "object", "properties": {}, "additionalProperties": False},
    "only optional": closed([], a={"type": "integer"}, b={"type": "boolean"}),
    "additional values": {"type": "object", "additionalProperties": {"type": "integer"}},
    "properties and additional": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
    },
    "patternProperties": {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False},
    "required without schema": {"type": "object", "required": ["q"]},
    "nested": closed(p=POINT, list={"type": "array", "items": POINT, "maxItems": 2}),
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    "anyOf of objects": {"anyOf": [closed(a={"type": "integer"}), closed(b=SHORT)]},
    "anyOf with null": closed(a={"anyOf": [SHORT, {"type": "null"}]}),
    "oneOf apart": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "oneOf by kind": {"oneOf": [closed(kind={"const": "a"}, v={"type": "integer"}), closed(kind={"const": "b"}, w={"type": "boolean"})]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "allOf of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "null"}}, "required": ["b"]},
        ]
    },
    "$ref": {"$defs": {"p": POINT}, "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2},
    "definitions": {"definitions": {"p": {"type": "boolean"}}, **closed(a={"$ref": "#/definitions/p"})},
    "recursive": TREE,
    "$ref with siblings": {"$defs": {"n": {"type": "integer"}}, **closed(a={"$ref": "#/$defs/n", "minimum": 5})},
    "pointer with escapes": {"$defs": {"a/b": {"type": "null"}}, **closed(a={"$ref": "#/$defs/a~1b"})},
    "odd names": closed(None, **{"a b": {"type": "integer"}, 'q"': {"type": "null"}, "é": {"type": "boolean"}}),
    "annotations": {"title": "t", "description": "d", "default": 1, "examples": [1], "type": "integer"},
    "minProperties": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "required": ["a", "b"],
        "minProperties": 2,
        "additionalProperties": False,
    },
    "const in properties": closed(type={"const": "call"}, n={"enum": [1, 2, 3]}),
    "deep": closed(a=closed(b=closed(c=closed(d={"type": "integer"})))),
    "number of any kind": closed(n={"type": ["number", "string"], "maxLength": 3}),
}
