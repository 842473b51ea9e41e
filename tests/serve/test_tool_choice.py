"""Which tools an answer calls, in the form of every dialect: what reaches the engine, and how forced calls and custom tools come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from tests.end_to_end.replay import of_client
from tests.serve.asking import values
from tests.serve.engine_double import INFO, REPORT
from tests.serve.jobs import CHATS, DIALECTS, HELLO, declared, job, parsed

from forerun.errors import BadRequestError
from forerun.values import AnswerRules, CallArguments, CallEnd, CallRule, CallStart, Chat, Done, Event, OutputFormat, PrefillProgress, Usage

ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "read"}}]}
FLAT_ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read"}, {"type": "web_search"}]}
RULES: list[tuple[str, dict[str, Any], CallRule]] = [
    *((dialect, {}, CallRule()) for dialect in CHATS),
    *((dialect, {"tool_choice": "auto"}, CallRule()) for dialect in CHATS),
    *((dialect, {"tool_choice": "none"}, CallRule()) for dialect in CHATS),
    ("chat", {"tool_choice": "required"}, CallRule(True)),
    ("chat", {"tool_choice": {"type": "function", "function": {"name": "read"}}}, CallRule(True, ("read",), False)),
    ("chat", {"tool_choice": {"type": "function", "name": "read"}}, CallRule(True, ("read",), False)),
    ("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED}}, CallRule(False, ("read",))),
    ("chat", {"parallel_tool_calls": False}, CallRule(is_parallel=False)),
    ("responses", {"tool_choice": "required"}, CallRule(True)),
    ("responses", {"tool_choice": {"type": "function", "name": "read"}}, CallRule(True, ("read",), False)),
    ("responses", {"tool_choice": FLAT_ALLOWED}, CallRule(True, ("read",))),
    ("responses", {"parallel_tool_calls": False, "tool_choice": "required"}, CallRule(True, is_parallel=False)),
    ("messages", {"tool_choice": {"type": "any"}}, CallRule(True)),
    ("messages", {"tool_choice": "any"}, CallRule(True)),
    ("messages", {"tool_choice": {"type": "tool", "name": "read"}}, CallRule(True, ("read",))),
    ("messages", {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, CallRule(True, is_parallel=False)),
    ("messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, CallRule(is_parallel=False)),
]


def tools(dialect: str) -> dict[str, Any]:
    return {"tools": [declared(dialect, name) for name in ("read", "write")]}


@pytest.mark.parametrize(("dialect", "body", "expected"), RULES, ids=[f"{name}-{json.dumps(body)[:60]}" for name, body, _ in RULES])
def test_the_rule(dialect: str, body: dict[str, Any], expected: CallRule) -> None:
    given = parsed(dialect, tools(dialect) | body)
    assert given.jobs[0].calls == expected
    assert given.ignored_fields == ()


@pytest.mark.parametrize("dialect", CHATS)
def test_without_tools_there_is_no_rule(dialect: str) -> None:
    single = (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}} if dialect == "messages" else {"parallel_tool_calls": False}
    )
    assert job(dialect, single).calls == job(dialect, {"tool_choice": "none"}).calls == CallRule()


@pytest.mark.parametrize("dialect", CHATS)
def test_strict_tools(dialect: str) -> None:
    given = {"tools": [declared(dialect, "read", strict=True), declared(dialect, "write", strict=False), declared(dialect, "list")]}
    assert job(dialect, given).calls == CallRule(strict=frozenset({"read"}))
    none: Any = {"type": "none"} if dialect == "messages" else "none"
    assert job(dialect, given | {"tool_choice": none}).calls == CallRule()


REFUSED: list[tuple[str, Any]] = [
    *((dialect, "some") for dialect in ("chat", "responses")),
    ("chat", {"type": "function", "function": {"name": "fetch"}}),
    ("chat", {"type": "function", "function": {}}),
    ("chat", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "fetch"}}]}}),
    ("chat", {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}),
    ("chat", {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}),
    ("responses", {"type": "function", "name": "fetch"}),
    ("responses", {"type": "web_search_preview"}),
    ("responses", {"type": "mcp", "server_label": "x"}),
    ("messages", {"type": "tool", "name": "fetch"}),
    ("messages", {"type": "tool"}),
]


@pytest.mark.parametrize(("dialect", "choice"), REFUSED, ids=str)
def test_a_choice_that_cannot_be_kept_is_refused(dialect: str, choice: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        job(dialect, tools(dialect) | {"tool_choice": choice})
    assert caught.value.param == "tool_choice"
    assert "fetch" not in str(choice) or "no tool 'fetch' is declared" in str(caught.value)


@pytest.mark.parametrize(("dialect", "choice"), [("chat", "required"), ("responses", "required"), ("messages", {"type": "any"})])
def test_a_forced_call_needs_a_tool(dialect: str, choice: Any) -> None:
    hosted = {
        "chat": {"type": "web_search"},
        "responses": {"type": "web_search"},
        "messages": {"type": "web_search_20250305", "name": "web"},
    }
    for given in ([], [hosted[dialect]]):
        with pytest.raises(BadRequestError, match="no tool is declared") as caught:
            job(dialect, {"tools": given, "tool_choice": choice})
        assert caught.value.param == "tool_choice"


def test_a_deferred_tool_may_be_chosen() -> None:
    later = declared("messages", "fetch", defer_loading=True)
    assert job("messages", {"tools": [later], "tool_choice": {"type": "tool", "name": "fetch"}}).calls.allowed == ("fetch",)


# --- the switch


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(
    ("setting", "switch", "expected"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
def test_calls_are_enforced_unless_switched_off(dialect: str, setting: bool, switch: bool | None, expected: bool) -> None:
    info = info_with(AnswerRules(enforce_calls=setting))
    given = tools(dialect) | {"forerun": {"enforce_calls": switch}}
    assert job(dialect, given, info).calls == CallRule(is_enforced=expected)


def info_with(rules: AnswerRules) -> Any:
    from dataclasses import replace

    return replace(INFO, rules=rules)


@pytest.mark.parametrize(
    "asked", [{"tool_choice": "required"}, {"parallel_tool_calls": False}, {"tools": [declared("chat", "read", strict=True)]}]
)
def test_what_the_request_itself_asks_for_is_enforced_anyway(asked: dict[str, Any]) -> None:
    assert job("chat", tools("chat") | asked | {"forerun": {"enforce_calls": False}}).calls.is_enforced


# --- custom tools

LARK = 'start: "a"+'
CHAT_PATCH = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Patches.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}},
    },
}
FLAT_PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Patches.",
    "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
}
PATCHES = {"chat": (CHAT_PATCH, "tools[0].custom.format"), "responses": (FLAT_PATCH, "tools[0].format")}
AS_FUNCTION = {
    "type": "function",
    "function": {
        "name": "patch",
        "description": "Patches.",
        "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    },
}


@pytest.mark.parametrize("dialect", PATCHES)
def test_a_custom_tool_is_a_function_for_the_model_and_its_grammar_one_of_its_input(dialect: str) -> None:
    tool, param = PATCHES[dialect]
    given = job(dialect, {"tools": [tool]})
    assert isinstance(given.prompt, Chat)
    assert given.prompt.tools == (AS_FUNCTION,)
    assert given.calls == CallRule(inputs={"patch": OutputFormat("lark", LARK, False, param)})
    choice: dict[str, Any] = {"chat": {"type": "custom", "custom": {"name": "patch"}}, "responses": {"type": "custom", "name": "patch"}}
    forced = job(dialect, {"tools": [tool], "tool_choice": choice[dialect]}).calls
    assert (forced.is_required, forced.allowed, forced.is_parallel) == (True, ("patch",), False)


@pytest.mark.parametrize("format", [None, {"type": "text"}])
def test_a_custom_tool_of_any_text(format: Any) -> None:
    assert job("chat", {"tools": [{"type": "custom", "custom": {"name": "say", "format": format}}]}).calls == CallRule()
    assert job("responses", {"tools": [{"type": "custom", "name": "say", "format": format}]}).calls == CallRule()


@pytest.mark.parametrize("format", [{"type": "ebnf"}, {"type": "grammar", "syntax": "bnf", "definition": "x"}, "lark"])
def test_another_grammar_is_refused(format: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        job("responses", {"tools": [{"type": "custom", "name": "say", "format": format}]})
    assert caught.value.param == "tools[0].format"


def test_codexs_patch_tool() -> None:
    found = [json.loads(each.body) for each in of_client("codex").values() if b'"lark"' in each.body]
    rules = [DIALECTS["responses"][0].parse(body, INFO, id="x", tenant="").jobs[0].calls for body in found]
    assert found
    for rule in rules:
        assert (list(rule.inputs), rule.inputs["apply_patch"].kind, rule.is_enforced) == (["apply_patch"], "lark", True)


# --- answers

START: list[Event] = [PrefillProgress(4, 7, 3, None)]
CALLED = Done("calls", Usage(7, 3, 2, 0), REPORT, "")


def call(name: str, arguments: str) -> list[Event]:
    return [CallStart(0, "c1", name), CallArguments(0, arguments[:4]), CallArguments(0, arguments[4:]), CallEnd(0, True)]


def whole(dialect: str, body: dict[str, Any], events: list[Event]) -> dict[str, Any]:
    response = DIALECTS[dialect][0].whole(parsed(dialect, body), INFO, created_unix_s=5)
    for event in [*START, *events, CALLED]:
        response.take(event)
    return response.body()


def streamed(dialect: str, body: dict[str, Any], events: list[Event]) -> list[Any]:
    stream = DIALECTS[dialect][0].streamed(parsed(dialect, body), INFO, created_unix_s=5)
    return values(b"".join(frame for event in [*START, *events, CALLED] for frame in stream.frames(event)).decode())


def test_a_custom_tool_is_called_as_one_in_chat() -> None:
    body = {"tools": [CHAT_PATCH, declared("chat", "read")]}
    answer = whole("chat", body, call("patch", '{"input": "a\\n"}'))
    message = ChatCompletion.model_validate(answer, strict=True).choices[0].message
    assert message.tool_calls
    assert message.tool_calls[0].model_dump() == {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "a\n"}}
    deltas = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in streamed("chat", body, call("patch", '{"input": "a\\n"}'))]
    assert [each for each in deltas if each] == [
        [{"index": 0, "id": "c1", "type": "custom", "custom": {"name": "patch", "input": ""}}],
        [{"index": 0, "custom": {"input": "a\n"}}],
    ]
    assert whole("chat", body, call("read", "{}"))["choices"][0]["message"]["tool_calls"][0]["type"] == "function"


def test_a_custom_tools_call_is_sent_back_as_the_same_call() -> None:
    message = whole("chat", {"tools": [CHAT_PATCH]}, call("patch", '{"input": "a"}'))["choices"][0]["message"]
    prompt = job("chat", {"messages": [HELLO, message], "tools": [CHAT_PATCH]}).prompt
    assert isinstance(prompt, Chat)
    assert prompt.messages[1]["tool_calls"][0]["function"] == {"name": "patch", "arguments": {"input": "a"}}


@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        ("auto", "tool_calls"),
        ("required", "tool_calls"),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED | {"mode": "required"}}, "tool_calls"),
        ({"type": "function", "function": {"name": "read"}}, "stop"),
    ],
    ids=str,
)
def test_the_finish_reason_of_calls_is_openais(choice: Any, finish: str) -> None:
    answer = whole("chat", tools("chat") | {"tool_choice": choice}, call("read", "{}"))
    assert answer["choices"][0]["finish_reason"] == finish
    assert streamed("chat", tools("chat") | {"tool_choice": choice}, call("read", "{}"))[-1]["choices"][0]["finish_reason"] == finish


def test_forced_calls_in_the_other_dialects() -> None:
    forced = tools("messages") | {"tool_choice": {"type": "tool", "name": "read"}}
    assert whole("messages", forced, call("read", "{}"))["stop_reason"] == "tool_use"
    forced = tools("responses") | {"tool_choice": {"type": "function", "name": "read"}}
    assert whole("responses", forced, call("read", "{}"))["status"] == "completed"
