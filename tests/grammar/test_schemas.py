"""Answers that are drawn from a schema's grammar are valid under it."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from tests.grammar.answers import TOKENIZER, compiled, walk
from tests.grammar.schemas import SCHEMAS

NUM_WALKS = 12
CHECKER = jsonschema.FormatChecker(["uuid", "ipv4", "email"])  # 29 February is a day of every year here


@pytest.mark.parametrize("name", SCHEMAS)
def test_drawn_answers_are_valid(name: str) -> None:
    schema = SCHEMAS[name]
    grammar = compiled(schema, args={"enable_thinking": False})
    for seed in range(NUM_WALKS):
        check(TOKENIZER.decode(walk(grammar.matcher(), random.Random(seed))[:-1]), schema)


def check(text: str, schema: Any) -> None:
    value = json.loads(text, strict=False)
    jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(value)
