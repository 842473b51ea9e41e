"""`forerun chat` against a scripted server, with lines typed in advance."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.wire import Cut, frame, report, serving, stream

from forerun.cli.chat import MAX_ANSWER_TOKENS, waits_for
from forerun.values import PrefillProgress, QueuePosition


@pytest.fixture(autouse=True)
def _private_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_a_conversation(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\n  \nand you?\nand?\n"))
    with serving() as wire:
        wire.answers.append(stream("good day", report(computed=1200)))
        wire.answers.append(stream("fine", report("ram", 1200, 30), finish="length"))
        wire.answers.append(stream("a a a", report("ram", 1230, 30), finish="loop"))
        ran = forerun("chat", "--url", wire.url + "/v1/", "--session", "mine")
    assert ran.code == 0
    assert [body["messages"][-1]["content"] for body in wire.bodies] == ["hello", "and you?", "and?"]
    assert wire.bodies[1]["messages"][1] == {"role": "assistant", "content": "good day"}
    assert all(body["forerun"] == {"session": "mine"} for body in wire.bodies)
    assert all(body["max_tokens"] == MAX_ANSWER_TOKENS for body in wire.bodies)
    assert "good day\n0 of 1,200 tokens cached (cold) · first token after 0.50 s · 50 tokens/s\n" in ran.out
    assert "fine\n1,200 of 1,230 tokens cached (ram) · first token after 0.50 s · 50 tokens/s · cut off after 4 tokens\n" in ran.out
    assert "ended after 4 tokens, since it repeats itself\n" in ran.out


def test_address_and_key_are_those_of_the_settings(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    monkeypatch.setenv("FORERUN_API_KEY", "sesame")
    with serving() as wire:
        monkeypatch.setenv("FORERUN_PORT", wire.url.rsplit(":", 1)[1])
        monkeypatch.setenv("FORERUN_HOST", "0.0.0.0")
        wire.answers.append(stream("good day", report()))
        ran = forerun("chat")
    assert (ran.code, wire.keys) == (0, ["Bearer sesame"] * 2)
    assert f"scripted at {wire.url}. Ctrl-C" in ran.out


def test_thoughts_are_shown_and_sent_back(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nand?\n"))
    thought = frame({"choices": [{"index": 0, "delta": {"reasoning_content": "hm\n"}, "finish_reason": None}]})
    with serving() as wire:
        wire.answers.extend([[thought, *stream("good day", report())], stream("so", report())])
        ran = forerun("chat", "--url", wire.url)
    assert "hm\ngood day\n" in ran.out
    assert wire.bodies[1]["messages"][1] == {"role": "assistant", "content": "good day", "reasoning_content": "hm\n"}


def test_markup_in_an_answer_is_text(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    with serving() as wire:
        wire.answers.append(stream("a[bold]b :smile:", report()))
        ran = forerun("chat", "--url", wire.url)
    assert "a[bold]b :smile:" in ran.out
    assert "forerun" not in wire.bodies[0]


def test_an_error_of_the_server_ends_the_answer_only(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    with serving() as wire:
        wire.answers.extend([(503, {"error": {"message": "the queue is full", "hint": "wait"}}), stream("good day", report())])
        ran = forerun("chat", "--url", wire.url)
    assert ran.code == 0
    assert "the server answers: the queue is full. wait\n" in ran.out
    assert [message["content"] for message in wire.bodies[1]["messages"]] == ["again"]


@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize("ending", [[], [frame({"error": {"message": "the server is stopping", "hint": "wait"}})]], ids=["lost", "error"])
def test_an_answer_that_is_cut_off_counts_as_far_as_it_came(
    forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, after: int, ending: list[bytes]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n/session\n/stats\nand?\n/stats\n"))
    with serving() as wire:
        wire.answers.extend([Cut([*stream("good day", report())[: after + 1], *ending]), stream("fine", report())])
        ran = forerun("chat", "--url", wire.url)
    came, why = "good day"[: 2 if after == 2 else None], f"the connection to {wire.url} was lost. the server may have been stopped"
    assert f"{came}\n{'the server answers: the server is stopping. wait' if ending else why}" in ran.out
    assert "1 turn so far\n" in ran.out
    assert ran.out.count("1 ended early\n") == 2
    assert wire.bodies[1]["messages"][1] == {"role": "assistant", "content": came}


def test_a_connection_that_is_lost_before_the_answer(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    with serving() as wire:
        wire.answers.extend([Cut(stream("", report())[:1]), stream("fine", report())])
        ran = forerun("chat", "--url", wire.url)
    (line,) = (line for line in ran.out.splitlines() if "lost" in line)
    assert line.removeprefix("> ") == f"the connection to {wire.url} was lost. the server may have been stopped; see its output"
    assert [message["content"] for message in wire.bodies[1]["messages"]] == ["again"]


def test_what_an_answer_waits_for() -> None:
    assert waits_for(QueuePosition(2)) == "waiting in the queue, 2 ahead"
    assert waits_for(PrefillProgress(1500, 4000, 1000, None)) == "prefill 1,500 of 4,000 tokens (1,000 cached)"


def test_quit(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" /quit \nhello\n"))
    with serving() as wire:
        ran = forerun("chat", "--url", wire.url)
    assert (ran.code, wire.bodies) == (0, [])


def test_a_named_conversation_is_resumed(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as wire:
        wire.answers.extend([stream("good day", report()), stream("fine", report("ssd", 30, 5))])
        for typed in ("hello\n", "and you?\n"):
            monkeypatch.setattr("sys.stdin", io.StringIO(typed))
            ran = forerun("chat", "--url", wire.url, "--session", "mine")
    assert [message["content"] for message in wire.bodies[1]["messages"]] == ["hello", "good day", "and you?"]
    assert "mine, 1 turn so far\n" in ran.out


def test_commands(forerun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["/stats", "hello", "/stats", "/session", "/session other", "/session", "/session a/b", "/nothing", "/help"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed) + "\n"))
    with serving() as wire:
        wire.answers.append(stream("good day", report("ram", 30, 10, reason="why not")))
        ran = forerun("chat", "--url", wire.url)
    assert len(wire.bodies) == 1
    expected = [
        "no answer yet",
        "1 answer: 30 of 40 prompt tokens cached, 4 tokens written",
        "layout contiguous, steps eager, numerics exact",
        "not all was cached: why not",
        "no name: it is not saved, 1 turn so far",
        "other, 0 turns so far",
        "'a/b' cannot be the name of a session",
        "there is no /nothing; /help lists the commands",
        "/session NAME ",
    ]
    assert [line for line in expected if line not in ran.out] == []


@pytest.mark.parametrize("url", ["foo", "ftp://127.0.0.1", "http://[::1"])
def test_an_invalid_address(forerun: Callable[..., Any], url: str) -> None:
    ran = forerun("chat", "--url", url)
    assert ran.code == 1
    assert ran.err.startswith(f"forerun: {url!r} is not the address of a server: ")
    assert ran.err.endswith("\nhint: write it like http://127.0.0.1:8484\n")
