"""The values that the client makes of a stream, and its errors when there is none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.wire import DONE, Cut, Wire, frame, report, serving, stream

from forerun.config import Config
from forerun.errors import ForerunError
from forerun.serve.client import Delta, End, health, stream_chat, url_of
from forerun.values import PrefillProgress, QueuePosition


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving() as wire:
        yield wire


def test_a_stream_as_values(wire: Wire) -> None:
    wire.answers.append([b": queued, 2 ahead\n", *stream("hello", report("ram", 6, 4), num_tokens=3, finish="length")])
    queued, reading, *deltas, end = stream_chat(wire.url, {"messages": []})
    assert queued == QueuePosition(2)
    assert reading == PrefillProgress(5, 10, 6, None)
    assert deltas == [Delta("content", "he"), Delta("content", "llo")]
    assert isinstance(end, End)
    assert (end.finish, end.usage["completion_tokens"], end.report["source"]) == ("length", 3, "ram")
    assert wire.bodies == [{"messages": [], "stream": True, "stream_options": {"include_usage": True}}]


def test_reasoning_has_its_own_kind(wire: Wire) -> None:
    thought = frame({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]})
    wire.answers.append([thought, *stream("ok", report())])
    assert next(iter(stream_chat(wire.url, {}))) == Delta("reasoning", "hm")


def test_a_refusal_has_the_servers_message(wire: Wire) -> None:
    wire.answers.append((400, {"error": {"message": "too long", "hint": "shorten it"}}))
    with pytest.raises(ForerunError, match="the server answers: too long") as caught:
        list(stream_chat(wire.url, {}))
    assert caught.value.hint == "shorten it"


@pytest.mark.parametrize(("key", "words"), [("", "requires an API key"), ("other", "does not know the API key that was sent")])
def test_a_missing_or_a_wrong_key_names_the_variable(wire: Wire, key: str, words: str) -> None:
    wire.answers.append((401, {"error": {"message": "API key missing or wrong", "hint": "send `x-api-key: KEY`"}}))
    with pytest.raises(ForerunError, match=f"the server at 127.0.0.1:[0-9]+ {words}") as caught:
        list(stream_chat(wire.url, {}, key=key))
    assert caught.value.hint == "set FORERUN_API_KEY to one of its keys"


@pytest.mark.parametrize(
    ("settings", "given", "url"),
    [
        ({}, "", "http://127.0.0.1:8484"),
        ({"port": 8500, "host": "::"}, "", "http://[::1]:8500"),
        ({"port": 8500}, "http://desk:80/v1/", "http://desk:80"),
    ],
)
def test_where_a_server_is(settings: dict[str, Any], given: str, url: str) -> None:
    assert url_of(Config.model_validate(settings), given) == url


def test_an_error_inside_the_stream(wire: Wire) -> None:
    wire.answers.append([*stream("hello", report())[:3], frame({"error": {"message": "a step failed"}})])
    with pytest.raises(ForerunError, match="a step failed"):
        list(stream_chat(wire.url, {}))


def test_a_stream_that_is_cut_off(wire: Wire) -> None:
    wire.answers.append([*stream("hello", report())[:3], DONE])
    with pytest.raises(ForerunError, match="was cut off"):
        list(stream_chat(wire.url, {}))


@pytest.mark.parametrize("num_frames", [0, 1, 3])
def test_a_connection_that_is_lost(wire: Wire, num_frames: int) -> None:
    wire.answers.append(Cut(stream("hello", report())[:num_frames]))
    with pytest.raises(ForerunError, match=f"^the connection to {wire.url} was lost$"):
        list(stream_chat(wire.url, {}))


@pytest.mark.parametrize(
    ("status", "body"), [(200, "ok"), (200, {"status": "ok"}), (200, {"model": "x"}), (404, {"detail": "Not Found"}), (500, {"error": "x"})]
)
def test_another_kind_of_server(monkeypatch: pytest.MonkeyPatch, status: int, body: Any) -> None:
    monkeypatch.setattr(httpx, "request", lambda method, url, **options: httpx.Response(status, json=body))
    with pytest.raises(ForerunError, match="what answers at http://x is not forerun"):
        health("http://x")


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ForerunError, match="no server answers") as caught:
        health(url)
    assert "forerun serve" in caught.value.hint
