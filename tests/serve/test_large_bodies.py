"""A large body stops nobody else while it is parsed, and means what a small one means."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.serve.asking import MESSAGES, ask
from tests.serve.engine_double import DONE, INFO, Engine
from tests.waiting import longest_stop_s

from forerun.errors import BadRequestError
from forerun.serve import anthropic, fields, openai_chat, openai_responses
from forerun.serve.fields import parse_body, parse_object

VALUES = {"a": [1, 1.5, -2e3, True, None, "x\u00e9\U0001f600\n"], "b": {"c": [], "d": {}}}
ODD = [b'{"a": "\\ud83d"}', b'{"a": "\xed\xa0\xbd"}', b'{"a": 1, "a": 2}', json.dumps(VALUES).encode("utf-16"), b'\xef\xbb\xbf{"a": 1}']
WRONG = [b'{"a": NaN}', b"[1]", b'{"a": 1,}', b'{"a": 1} x', b'{"a": \xff}', b"", b'{"a": ' + b"[" * 100_000]


def small_and_large(body: bytes, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    for limit in (1 << 30, 0):
        monkeypatch.setattr(fields, "LARGE_BYTES", limit)
        try:
            found.append(asyncio.run(parse_body(body, lambda value: value)))
        except BadRequestError as error:
            found.append(str(error).split(":")[0])
    return found


@pytest.mark.parametrize(
    "body", [json.dumps(VALUES).encode(), json.dumps(VALUES, ensure_ascii=False).encode(), *ODD, *WRONG], ids=range(14)
)
def test_a_large_body_means_what_a_small_one_means(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = small_and_large(body, monkeypatch)
    assert small == large


def test_other_threads_run_while_a_large_body_is_parsed() -> None:
    body = json.dumps({"a": [[] for _ in range(100_000)], "b": list(range(800_000))}).encode()
    start_s = time.monotonic()
    stop_s = longest_stop_s(lambda: parse_object(body))
    assert stop_s < (time.monotonic() - start_s) / 2, "it was parsed in one piece"


def test_a_body_of_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "LARGE_BYTES", 0)
    monkeypatch.setattr(fields, "MOST_CONTAINERS", 3)
    assert parse_object(b'{"a": [{}]}') == {"a": [{}]}
    with pytest.raises(BadRequestError, match="more than 3 objects and lists"):
        parse_object(b'{"a": [{}, []]}')


def test_a_large_request_is_answered_as_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "LARGE_BYTES", 0)
    assert ask(Engine(DONE), "POST", "/v1/chat/completions", json={"messages": MESSAGES}).status_code == 200
    refused = ask(Engine(DONE), "POST", "/v1/messages", json={"messages": [{"role": "nobody"}], "max_tokens": 1})
    assert (refused.status_code, refused.json()["type"]) == (400, "error")


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (openai_chat.parse, {"messages": [{}] * 50_000}),
        (anthropic.parse, {"messages": [{}] * 50_000, "max_tokens": 1}),
        (anthropic.parse, {"messages": [{"role": "user", "content": [{}] * 50_000}], "max_tokens": 1}),
        (openai_responses.parse, {"input": [{"role": "nobody"}] * 50_000}),
    ],
)
def test_of_many_errors_only_the_first_is_looked_for(parse: Any, body: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as refused:
        parse(body, INFO, id="x", tenant="")
    cause = refused.value.__cause__
    assert cause.error_count() < 100  # type: ignore[union-attr]


def test_a_refused_value_is_not_sent_back_whole() -> None:
    with pytest.raises(BadRequestError) as refused:
        openai_chat.parse({"messages": MESSAGES, "bad_words": "a" * 100_000}, INFO, id="x", tenant="")
    assert len(str(refused.value)) < 400
