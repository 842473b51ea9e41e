"""Calls that are drawn from what grammars allow, in every format, are parsed as calls with valid arguments."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from tests.grammar import recorded
from tests.grammar.answers import walk
from tests.grammar.call_answers import ALL_TOKENS, FORMATS, calls_of, parsed, tool
from tests.grammar.schemas import SCHEMAS, closed

from forerun.values import CallRule

CHECKER = jsonschema.FormatChecker(["uuid", "ipv4", "email"])  # 29 February is a day of every year here
REQUIRED = CallRule(is_required=True)


def check_calls(name: str, tools: list[Any], rule: CallRule, seed: int, *, is_thinking: bool = False) -> list[tuple[str, Any]]:
    """A drawn answer's calls, whose arguments are valid."""
    grammar, prompt = calls_of(FORMATS[name], tools, rule, is_thinking=is_thinking)
    answer = walk(grammar.matcher(), random.Random(seed), encode=ALL_TOKENS.encode_alone)
    message, calls = parsed(prompt, ALL_TOKENS.decode(answer[:-1]))
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    assert calls
    assert not (message["content"] or "").strip()
    for called, arguments in calls:
        check(arguments, schemas[called])
    return calls


def check(value: Any, schema: Mapping[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(value)


# Every schema as that of an argument, and within an object that is one.
ARGUMENTS = {
    name: schema
    for name, schema in SCHEMAS.items()
    if isinstance(schema, dict) and not schema.keys() & {"$defs", "definitions"} and name not in ("patternProperties", "odd names")
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("schema", ARGUMENTS)
def test_calls_with_all_kinds_of_arguments_are_valid(schema: str, name: str) -> None:
    parameters = closed(["first", "last"], first={"type": "string"}, given=ARGUMENTS[schema], last=closed(inner=ARGUMENTS[schema]))
    for seed in range(3):
        check_calls(name, [tool("use", parameters)], REQUIRED, seed)


@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_the_recorded_tools_are_valid(name: str) -> None:
    for seed, each in enumerate(recorded.tools().values()):
        check_calls(name, [each], REQUIRED, seed)


@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_the_recorded_lists_are_valid(name: str) -> None:
    for seed, tools in enumerate(recorded.tool_lists()):
        check_calls(name, list(tools), REQUIRED, seed, is_thinking=seed % 2 == 1)
