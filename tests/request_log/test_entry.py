"""Encoding and decoding of a line of the request log."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.serve.engine_double import DONE

from forerun.errors import ForerunError
from forerun.request_log.entry import Content, Entry, decode, encode
from forerun.values import Chat, PrefillProgress, TokenPrompt

TIME = "2026-11-29T20:00:00.000+00:00"
FAST = Entry(TIME, "id", "demo", "me", "stop", None, 0.5, 7, PrefillProgress(7, 7, 3, None), DONE.usage, DONE.report, None)
WAITED = Entry(TIME, "id", "demo", "", "cancelled", "ForerunError: the client disconnected", 0.5, 7, None, None, None, None)
CHAT = Chat(({"role": "user", "content": "A\nB \u2028 \u00fc"},), ({"type": "function"},), {"enable_thinking": False})


@pytest.mark.parametrize(
    "entry", [FAST, WAITED, replace(FAST, content=Content(CHAT, "C")), replace(WAITED, content=Content(TokenPrompt((1,)), ""))]
)
def test_a_line_is_the_entry(entry: Entry) -> None:
    line = encode(entry)
    assert "\n" not in line
    assert decode(line) == entry


def test_its_fields_are_those_of_the_response() -> None:
    fields = json.loads(encode(FAST))
    assert fields["usage"] == {"prompt_tokens": 7, "cached_tokens": 3, "completion_tokens": 2, "reasoning_tokens": 1}
    assert (fields["report"]["layout"], fields["report"]["eager_steps"], fields["content"]) == ("contiguous", {"requested": 1}, None)


def test_a_newer_line_may_have_more_fields() -> None:
    fields = json.loads(encode(FAST))
    assert decode(json.dumps({**fields, "new": 1, "report": {**fields["report"], "new": 1}})) == FAST


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("{", "the line: Invalid JSON"), ("[]", "the line: "), ('{"time": 1}', "time: "), ("{}", "time: Field required")],
)
def test_another_line_is_refused(line: str, complaint: str) -> None:
    with pytest.raises(ForerunError, match=complaint):
        decode(line)
