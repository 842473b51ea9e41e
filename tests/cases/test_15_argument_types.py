"""Arguments as text, typed by the tool's schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cases.dictation import answers, case

CASES = case("15-argument-types.json")["cases_in"]


@pytest.mark.parametrize("each", CASES, ids=lambda each: f"{json.dumps(each['schema'])} {each['text']}")
def test_an_argument_has_the_type_that_its_schema_expects(each: dict[str, Any]) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"p": each["schema"]}, "$defs": each.get("defs", {})}
    if "additionalProperties" in each:
        schema |= {"properties": {}, "additionalProperties": each["additionalProperties"]}
    text = f"</think>\n\n<tool_call>\n<function=f>\n<parameter=p>\n{each['text']}\n</parameter>\n</function>\n</tool_call>"
    for answer in answers(text, written="qwen", tools={"f": schema}, max_tokens=400):
        [(_, name, arguments)] = answer.calls
        assert (name, json.loads(arguments)) == ("f", {"p": each["expected"]})
