"""Every response has a request id, refusals too; the log has every request, and no content."""

from __future__ import annotations

import json
import logging
import re

import httpx
import pytest
from tests.serve.asking import MESSAGES, ask, chat
from tests.serve.engine_double import DONE, Engine

from forerun.errors import NumericsError
from forerun.log import JsonFormatter, TextFormatter, request_id, short_id
from forerun.values import Content


@pytest.mark.parametrize(
    ("method", "path", "status", "sent"),
    [
        ("GET", "/health", 200, {}),
        ("GET", "/nothing", 404, {}),
        ("POST", "/v1/chat/completions", 415, {"content": b"{}"}),
        ("POST", "/v1/chat/completions", 400, {"json": {}}),
        ("POST", "/v1/messages", 400, {"json": {}}),
    ],
)
def test_every_response_has_an_id_of_its_own(method: str, path: str, status: int, sent: dict[str, object]) -> None:
    responses = [ask(Engine(), method, path, **sent) for _ in range(2)]
    assert [response.status_code for response in responses] == [status] * 2
    ids = [response.headers["x-request-id"] for response in responses]
    assert ids == [response.headers["request-id"] for response in responses]
    assert len(set(ids)) == 2
    assert all(len(id) == 32 for id in ids)


@pytest.mark.parametrize("failure", [NumericsError("no"), ValueError("inside")])
def test_a_failure_has_an_id_too(failure: Exception) -> None:
    assert chat(Engine(failure)).headers["x-request-id"]


def test_the_id_of_a_completion_ends_with_the_request_id() -> None:
    response = chat(Engine(Content("x"), DONE))
    assert response.json()["id"] == f"chatcmpl-{response.headers['x-request-id']}"


def test_the_log_has_every_request_and_no_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        chat(Engine(Content("an answer"), DONE), messages=[*MESSAGES, {"role": "user", "content": "a question"}])
        ask(Engine(), "GET", "/health")
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("forerun.serve")]
    assert len(lines) == 1
    assert re.fullmatch(r"POST /v1/chat/completions: 200 after \d+\.\d\d s", lines[0])
    assert "question" not in caplog.text
    assert "answer" not in caplog.text


def test_a_polled_route_is_logged_if_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert ask(Engine(), "GET", "/health", keys={"me": "key"}).status_code == 401
    assert "GET /health: 401" in caplog.text


def test_lines_for_people_and_for_programs() -> None:
    record = logging.LogRecord("forerun.bank", logging.WARNING, "", 0, "%d records", (3,), None)
    record.created = 1_700_000_000.25
    assert TextFormatter().format(record) == "2023-11-14T22:13:20.250Z warning: 3 records"
    token = request_id.set("abc")
    try:
        assert json.loads(JsonFormatter().format(record)) == {
            "time": "2023-11-14T22:13:20.250Z",
            "level": "warning",
            "logger": "forerun.bank",
            "message": "3 records",
            "request_id": "abc",
        }
        assert TextFormatter().format(record).endswith("Z warning: [abc] 3 records")
        request_id.set("chatcmpl-0123456789abcdef0123456789abcdef")
        assert TextFormatter().format(record).endswith("Z warning: [0123456789ab] 3 records")
    finally:
        request_id.reset(token)


@pytest.mark.parametrize(
    ("id", "short"),
    [
        ("0123456789abcdef0123456789abcdef", "0123456789ab"),
        ("chatcmpl-0123456789abcdef0123456789abcdef", "0123456789ab"),
        ("msg_0123456789abcdef0123456789abcdef", "0123456789ab"),
        ("cmpl-0123456789abcdef0123456789abcdef-1", "0123456789ab-1"),
        ("0a1b2c3d4e5f", "0a1b2c3d4e5f"),
        ("my-conversation-on-the-parser", "my-conversat"),
    ],
)
def test_ids_have_one_length(id: str, short: str) -> None:
    assert short_id(id) == short


def test_live_and_ready() -> None:
    engine = Engine()

    def found(path: str) -> tuple[int, object]:
        response: httpx.Response = ask(engine, "GET", path)
        return response.status_code, response.json()

    assert [found("/health/live"), found("/health/ready")] == [(200, {"live": True}), (200, {"ready": True})]
    engine.ready = False
    assert [found("/health/live")[0], found("/health/ready")[0]] == [200, 503]
    assert ask(engine, "GET", "/health").json()["ready"] is False


@pytest.mark.parametrize(
    ("headers", "agent"),
    [
        ({}, ""),
        ({"User-Agent": "curl/8"}, ""),
        ({"X-Claude-Code-Session-Id": "s"}, "s"),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a", "x-claude-code-parent-agent-id": "p"}, "s/a"),
        ({"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s"}, "t"),
        ({"x-session-id": "ses_1", "x-session-affinity": "ses_1", "x-parent-session-id": "ses_0"}, "ses_1"),
        ({"session_id": "s" * 99}, "s" * 64),
    ],
    ids=["none", "curl", "Claude Code", "its sub-agent", "Codex", "opencode", "pi"],
)
def test_a_client_names_the_agent_that_asks(headers: dict[str, str], agent: str) -> None:
    engine = Engine(Content("a"), DONE)
    ask(engine, "POST", "/v1/chat/completions", json={"model": "m", "messages": MESSAGES}, headers=headers)
    assert engine.jobs[0].agent == agent
