"""On a terminal of 80 or 100 columns, no line of a command breaks inside a word."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import Ran
from tests.records import record
from tests.request_log.test_analysis import FAULTY, RAM, entry

from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold
from forerun.bank.tier.history import Session
from forerun.cli import demo
from forerun.cli.doctor import line
from forerun.cli.lines import aligned, say
from forerun.demo.compare import Verdict
from forerun.demo.turns import STEPS, Answer, Turn
from forerun.doctor.finding import failure
from forerun.request_log.entry import encode
from forerun.values import Miss

Forerun = Callable[..., Ran]
SEGMENT = record("segment", tokens=[1, 2, 3], num_bytes=100_000)
SNAPSHOT = record("snapshot", tokens=[1, 2, 3], num_bytes=50_000)
NARROW = [80, 100]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bank with three conversations, and a request log with long rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_CONFIG", "config.toml")
    monkeypatch.setenv("FORERUN_BANK_DIR", "bank")
    monkeypatch.setenv("FORERUN_REQUEST_LOG", "log.jsonl")
    for limit in ("DISK", "DAILY_WRITE"):  # the defaults change with the free disk
        monkeypatch.setenv(f"FORERUN_BANK_{limit}_BYTES", "1GiB")
    tier = DiskTier(tmp_path / "bank", limit_bytes=1 << 30, daily_limit_bytes=1 << 62, index=hold(tmp_path / "bank"))
    for each in (SEGMENT, SNAPSHOT):
        tier.put(each)
    keys = SEGMENT.info.key, SNAPSHOT.info.key
    title = "Explain why the parser swallows what follows an unclosed tag"
    for id, owner in (("0a1b2c3d4e5f", ""), ("my-conversation-on-the-parser", "somebody"), ("b", "")):
        tier.index.note_session(Session(owner, id, "", 1e9, 1234, 123_456, True, keys, title, "codex_cli_rs"))
    tier.close()
    miss = Miss("differs", 9, "message 3 (assistant)", "tool_calls[0].function.arguments", "", "")
    slow = replace(FAULTY, layout="contiguous", prefill_tok_per_s=1234.5, decode_tok_per_s=32.0, ttft_s=1600.0, queue_s=99.5, miss=miss)
    slow = replace(slow, reason="the nearest stored conversation diverges after 9 tokens", computed_tokens=120_000)
    entries = [*RAM, entry(131_072, slow, id="chatcmpl-0123456789abcdef0123456789abcdef")]
    (tmp_path / "log.jsonl").write_text("\n".join(encode(each) for each in entries) + "\n")
    return tmp_path


COMMANDS = {
    "ls": ["bank", "ls"],
    "show": ["bank", "show", "0a1b"],
    "explain": ["bank", "explain", "0123456789ab"],
    "report": ["report"],
    "config": ["config", "show"],
    "inspect": ["models", "inspect"],
    "verify": ["bank", "verify"],
}


def check(narrow: str, wide: str, columns: int) -> None:
    """All words are words of the wide output, and lines fit unless they are a word."""
    narrow, wide = (re.sub("\x1b\\[[0-9;]*m", "", text) for text in (narrow, wide))
    broken = {word for word in narrow.split() if not word.endswith("…")} - set(wide.split())
    assert broken == set()
    assert [each for each in narrow.splitlines() if len(each) > columns and len(each.split()) > 1] == []


@pytest.mark.parametrize("columns", NARROW)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands(forerun: Forerun, home: Path, monkeypatch: pytest.MonkeyPatch, command: str, columns: int) -> None:
    printed = {}
    for width in (columns, 400):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        printed[width] = forerun(*COMMANDS[command]).out
    check(printed[columns], printed[400], columns)


@pytest.mark.parametrize("columns", NARROW)
def test_prose_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = "forerun: " + "a long-winded sentence about /some/path/of/a/file " * 5
    say(text, "/" + "x" * 200)
    printed = capsys.readouterr().out
    check(printed, f"{text} {'/' + 'x' * 200}", columns)


def test_prose_elsewhere_stays_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("word " * 100)
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("columns", NARROW)
def test_findings_and_aligned_rows(columns: int) -> None:
    text = "the folder /home/somebody/.cache/forerun/bank is not writable by this user, who is somebody else"
    check(line(failure("bank", text, f"make it writable: {text}"), columns).plain, f"failure bank {text} to do: make it writable:", columns)
    rows = list(aligned([("a", "b c d"), ("long", "word " * 40)], columns))
    assert rows[0] == "a     b c d"
    assert all(len(row) <= columns for row in rows)
    assert list(aligned([], columns)) == []


@pytest.mark.parametrize("columns", NARROW)
def test_the_demos_table(columns: int) -> None:
    report: dict[str, Any] = {
        "source": "ssd",
        "reused_tokens": 123_456,
        "computed_tokens": 123_456,
        "ttft_s": 123.4,
        "layout": "contiguous",
    }
    report |= {"prefill_tok_per_s": 1234.5, "decode_tok_per_s": 1234.5}
    answer = Answer("", {"prompt_tokens": 123_456}, report)
    table = demo.table([Turn(step, (), answer, answer) for step in STEPS], [Verdict(True, "equal", "equal")] * 5)
    shown = {}
    for width in (columns, 400):
        console = Console(width=width, file=io.StringIO())
        with console.capture() as captured:
            console.print(table)
        shown[width] = captured.get()
    check(shown[columns], shown[400], columns)
