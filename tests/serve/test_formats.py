"""The form of an answer, in the fields of every dialect and of other servers' clients: what reaches the engine, and the model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.end_to_end.replay import of_client
from tests.serve.engine_double import INFO
from tests.serve.jobs import CHATS, DIALECTS, HELLO, SCHEMA, job, messages, parsed
from tests.serve.rendering import prompter

from forerun.errors import BadRequestError
from forerun.serve.anthropic import parse_count
from forerun.serve.app import CHAT, MESSAGES
from forerun.serve.formats import OBJECT_INSTRUCTION, SCHEMA_INSTRUCTION
from forerun.serve.response_routes import RESPONSES
from forerun.values import OutputFormat

TEXT = json.dumps(SCHEMA, ensure_ascii=False)
NAMED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
FLAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}


def schema(param: str, *, is_strict: bool = False) -> OutputFormat:
    return OutputFormat("json_schema", TEXT, is_strict, param)


OWN_FIELDS: list[tuple[str, dict[str, Any], OutputFormat]] = [
    ("chat", {"response_format": NAMED}, schema("response_format.json_schema.schema")),
    (
        "chat",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        schema("response_format.json_schema.schema", is_strict=True),
    ),
    ("chat", {"response_format": {"type": "json_object"}}, OutputFormat("json_object", "", False, "response_format")),
    ("chat", {"response_format": {"type": "json_object", "schema": SCHEMA}}, schema("response_format.schema")),
    ("completions", {"response_format": NAMED}, schema("response_format.json_schema.schema")),
    ("responses", {"text": {"format": FLAT}}, schema("text.format.schema")),
    ("responses", {"text": {"format": FLAT | {"strict": True}}}, schema("text.format.schema", is_strict=True)),
    ("responses", {"text": {"format": FLAT | {"strict": None}}}, schema("text.format.schema")),
    ("responses", {"text": {"format": {"type": "json_object"}}}, OutputFormat("json_object", "", False, "text.format")),
    (
        "messages",
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        schema("output_config.format.schema", is_strict=True),
    ),
    ("messages", {"output_format": {"type": "json_schema", "schema": SCHEMA}}, schema("output_format.schema", is_strict=True)),
]


@pytest.mark.parametrize(
    ("dialect", "body", "expected"), OWN_FIELDS, ids=[f"{name}-{json.dumps(body)[:50]}" for name, body, _ in OWN_FIELDS]
)
def test_the_dialects_own_fields(dialect: str, body: dict[str, Any], expected: OutputFormat) -> None:
    assert job(dialect, body).output == expected
    assert parsed(dialect, body).ignored_fields == ()


EXTENSIONS: list[tuple[dict[str, Any], OutputFormat]] = [
    ({"guided_json": SCHEMA}, schema("guided_json")),
    ({"guided_json": TEXT}, schema("guided_json")),
    ({"guided_json": {}}, OutputFormat("json_schema", "{}", False, "guided_json")),
    ({"guided_regex": "[ab]+"}, OutputFormat("regex", "[ab]+", True, "guided_regex")),
    ({"guided_choice": ["yes", "nö"]}, OutputFormat("choice", '["yes", "nö"]', True, "guided_choice")),
    ({"guided_grammar": 'root ::= "a"'}, OutputFormat("gbnf", 'root ::= "a"', True, "guided_grammar")),
    ({"guided_grammar": 'start: "a"'}, OutputFormat("lark", 'start: "a"', True, "guided_grammar")),
    ({"structured_outputs": {"json": SCHEMA}}, schema("structured_outputs.json")),
    ({"structured_outputs": {"regex": "a", "json": None}}, OutputFormat("regex", "a", True, "structured_outputs.regex")),
    ({"structured_outputs": {"choice": ["a"]}}, OutputFormat("choice", '["a"]', True, "structured_outputs.choice")),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, OutputFormat("gbnf", 'root ::= "a"', True, "structured_outputs.grammar")),
    ({"structured_outputs": {"json_object": True}}, OutputFormat("json_object", "", False, "structured_outputs.json_object")),
    ({"grammar": 'root ::= "a"'}, OutputFormat("gbnf", 'root ::= "a"', True, "grammar")),
    ({"json_schema": SCHEMA}, schema("json_schema")),
    ({"json_schema": {}}, OutputFormat("json_schema", "{}", False, "json_schema")),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("body", "expected"), EXTENSIONS, ids=[json.dumps(body)[:50] for body, _ in EXTENSIONS])
def test_the_fields_of_other_servers_clients(dialect: str, body: dict[str, Any], expected: OutputFormat) -> None:
    assert job(dialect, body).output == expected


NOTHING: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"response_format": {"type": "text"}}),
    ("chat", {"response_format": {}}),
    ("chat", {"response_format": None}),
    ("responses", {"text": {"format": {"type": "text"}}}),
    ("messages", {"output_config": {"format": None}}),
    *((dialect, body) for dialect in DIALECTS for body in ({"grammar": ""}, {"guided_choice": []}, {"structured_outputs": {"json": None}})),
]


@pytest.mark.parametrize(("dialect", "body"), NOTHING)
def test_any_text(dialect: str, body: dict[str, Any]) -> None:
    assert job(dialect, body).output is None
    assert job(dialect, body).prompt == job(dialect, {}).prompt


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"response_format": NAMED, "guided_json": SCHEMA}, "guided_json"),
    ("chat", {"grammar": 'root ::= "a"', "json_schema": SCHEMA}, "json_schema"),
    ("completions", {"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ("completions", {"structured_outputs": {"regex": "a", "json": SCHEMA}}, "structured_outputs.regex"),
    ("responses", {"text": {"format": FLAT}, "structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
    ("messages", {"output_config": {"format": FLAT}, "output_format": FLAT}, "output_format.schema"),
    ("chat", {"response_format": {"type": "grammar"}}, "response_format.type"),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}}, "response_format.json_schema.schema"),
    ("chat", {"guided_json": "{"}, "guided_json"),
    ("chat", {"guided_json": "[1]"}, "guided_json"),
    ("chat", {"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
    ("chat", {"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
    ("chat", {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
]


@pytest.mark.parametrize(("dialect", "body", "param"), REFUSED, ids=[json.dumps(body)[:60] for _, body, _ in REFUSED])
def test_what_is_refused_is_named(dialect: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        job(dialect, body)
    assert caught.value.param == param
    assert param in str(caught.value)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(BadRequestError, match="nested too deeply"):
        job("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": deep}}})


def test_the_formats_description_becomes_the_schemas() -> None:
    body = {"type": "json_schema", "json_schema": {"name": "n", "description": "A find.", "schema": SCHEMA}}
    output = job("chat", {"response_format": body}).output
    assert output
    assert json.loads(output.definition) == SCHEMA | {"description": "A find."}
    own = body | {"json_schema": {"description": "x", "schema": {"description": "y"}}}
    assert (job("chat", {"response_format": own}).output or output).definition == '{"description": "y"}'


# --- what the model sees

SHOWN = {
    "chat": {"response_format": NAMED},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "responses": {"text": {"format": FLAT}},
}
WITH_SYSTEM = {
    "chat": {"messages": [{"role": "developer", "content": "Be brief."}, HELLO]},
    "messages": {"system": "Be brief."},
    "responses": {"instructions": "Be brief."},
}


@pytest.mark.parametrize("dialect", CHATS)
def test_the_schema_is_shown_in_its_order_at_the_end_of_the_system_message(dialect: str) -> None:
    instruction = SCHEMA_INSTRUCTION + TEXT
    assert messages(dialect, SHOWN[dialect]) == ({"role": "system", "content": instruction}, HELLO)
    system = {"role": "system", "content": f"Be brief.\n\n{instruction}"}
    assert messages(dialect, SHOWN[dialect] | WITH_SYSTEM[dialect]) == (system, HELLO)


def test_an_object_of_any_form_is_shown_too_and_what_is_no_json_is_not() -> None:
    assert messages("chat", {"response_format": {"type": "json_object"}})[0] == {"role": "system", "content": OBJECT_INSTRUCTION}
    assert messages("chat", {"guided_regex": "a"}) == messages("chat", {"grammar": 'root ::= "a"'}) == (HELLO,)


@pytest.mark.parametrize("system", [{}, {"system": "Be brief."}])
def test_a_later_turn_begins_with_the_tokens_of_the_turn_before(system: dict[str, Any]) -> None:
    turns = [[HELLO], [HELLO, {"role": "assistant", "content": "{}"}, {"role": "user", "content": "again"}]]
    first, second = (
        prompter().encode(job("messages", SHOWN["messages"] | system | {"messages": turn}).prompt, tenant="") for turn in turns
    )
    assert second.tokens[: first.message_end] == first.tokens[: first.message_end]


def test_counted_tokens_include_the_schema() -> None:
    body = SHOWN["messages"] | {"messages": [HELLO]}
    assert parse_count(body) == job("messages", body).prompt


# --- recorded requests

RECORDED: list[tuple[str, Any, str, OutputFormat]] = [
    (
        "claude-code",
        MESSAGES,
        "json_schema",
        OutputFormat(
            "json_schema",
            '{"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"], "additionalProperties": false}',
            True,
            "output_config.format.schema",
        ),
    ),
    ("python-sdk", CHAT, '"response_format"', OutputFormat("json_object", "", False, "response_format")),
    (
        "python-sdk",
        RESPONSES,
        '"json_schema"',
        OutputFormat(
            "json_schema",
            '{"properties": {"name": {"title": "Name", "type": "string"}, "line": {"title": "Line", "type": "integer"}, '
            '"kinds": {"items": {"enum": ["floor", "true"], "type": "string"}, "title": "Kinds", "type": "array"}}, '
            '"required": ["name", "line", "kinds"], "title": "Finding", "type": "object", "additionalProperties": false}',
            True,
            "text.format.schema",
        ),
    ),
]


@pytest.mark.parametrize(("client", "dialect", "sign", "expected"), RECORDED, ids=["Claude Code's title", "SDK's object", "SDK's parse"])
def test_recorded_requests(client: str, dialect: Any, sign: str, expected: OutputFormat) -> None:
    path = {id(MESSAGES): "messages", id(CHAT): "chat/completions", id(RESPONSES): "responses"}[id(dialect)]
    found = [json.loads(each.body) for each in of_client(client).values() if path in each.path and sign.encode() in each.body]
    outputs = [dialect.parse(body, INFO, id="x", tenant="").jobs[0].output for body in found]
    assert expected in outputs
