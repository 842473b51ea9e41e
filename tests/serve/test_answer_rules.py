"""The limit of the reasoning, the loop breaker, and what ended an answer: requests, settings, and responses in every dialect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.serve.engine_double import INFO, REPORT
from tests.serve.jobs import CHATS, DIALECTS, job, parsed

from forerun.serve.fields import THINKING_LIMITS
from forerun.values import AnswerRules, Chat, Content, Done, PrefillProgress, Usage


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", THINKING_LIMITS)
def test_the_limit_has_many_names(dialect: str, name: str) -> None:
    assert job(dialect, {name: 30}).reasoning_tokens == 30
    assert job(dialect, {name: 0}).reasoning_tokens == 0
    assert job(dialect, {name: -1}).reasoning_tokens is None
    assert parsed(dialect, {name: 30}).ignored_fields == ()


OWN: list[tuple[str, dict[str, Any], int | None]] = [
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 2048}}, 2048),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": -5}}, 0),
    ("messages", {"thinking": {"type": "adaptive"}}, None),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 9}, "max_thinking_tokens": 5}, 9),
    ("chat", {"reasoning": {"max_tokens": 40}}, 40),
    ("responses", {"reasoning": {"max_tokens": 40}}, 40),
    ("chat", {}, None),
]


@pytest.mark.parametrize(("dialect", "body", "expected"), OWN)
def test_the_dialects_own_fields(dialect: str, body: dict[str, Any], expected: int | None) -> None:
    assert job(dialect, body).reasoning_tokens == expected
    assert parsed(dialect, body).ignored_fields == ()


EFFORTS = {
    "chat": [{"reasoning_effort": "high"}, {"reasoning": {"effort": "high"}}],
    "messages": [{"output_config": {"effort": "high"}}],
    "responses": [{"reasoning": {"effort": "high"}}],
}


@pytest.mark.parametrize("dialect", CHATS)
def test_an_effort_is_the_templates_and_no_limit(dialect: str) -> None:
    for body in EFFORTS[dialect]:
        given = job(dialect, body)
        assert isinstance(given.prompt, Chat)
        assert (given.prompt.template_args, given.reasoning_tokens) == ({"reasoning_effort": "high"}, None)


@pytest.mark.parametrize(("requested", "expected"), [({}, 100), ({"max_thinking_tokens": 30}, 30), ({"max_thinking_tokens": 300}, 100)])
def test_the_servers_limit_is_an_upper_one(requested: dict[str, Any], expected: int) -> None:
    info = replace(INFO, rules=AnswerRules(max_thinking_tokens=100))
    assert [job(dialect, requested, info).reasoning_tokens for dialect in DIALECTS] == [expected] * 4


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("setting", "switch", "expected"), [(False, None, False), (False, True, True), (True, None, True), (True, False, False)]
)
def test_loops_are_broken_where_it_is_asked_for(dialect: str, setting: bool, switch: bool | None, expected: bool) -> None:
    info = replace(INFO, rules=AnswerRules(break_loops=setting))
    assert job(dialect, {"forerun": {"break_loops": switch}}, info).is_loop_broken is expected


ENDINGS = {
    "chat": lambda body: body["choices"][0]["finish_reason"] == "length",
    "completions": lambda body: body["choices"][0]["finish_reason"] == "length",
    "messages": lambda body: body["stop_reason"] == "max_tokens",
    "responses": lambda body: (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"}),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_broken_loop_is_cut_off_for_clients_and_named_in_the_report(dialect: str) -> None:
    """Clients' types know no other word; one that they do not know fails in some."""
    report = replace(REPORT, unenforced=("tools[0]: not",))
    response = DIALECTS[dialect][0].whole(parsed(dialect, {}), INFO, created_unix_s=5)
    for event in (PrefillProgress(4, 7, 3, None), Content("a a"), Done("loop", Usage(7, 3, 2, 0), report, "")):
        response.take(event)
    body = response.body()
    assert ENDINGS[dialect](body)
    assert (body["forerun"]["finish"], body["forerun"]["unenforced"]) == ("loop", ("tools[0]: not",))
