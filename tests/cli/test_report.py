"""`forerun report` for people and for programs, from files as a server leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.request_log.test_analysis import FAULTY, RAM, entry

from forerun.request_log.entry import encode
from forerun.values import Miss

SLOW = replace(FAULTY, prefill_tok_per_s=60.0, decode_tok_per_s=32.0, ttft_s=16.0, compiled_steps=0, eager_steps={"requested": 100})
LINES = [encode(each) for each in (*RAM, entry(21_200, SLOW, id="culprit"))]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    (tmp_path / "requests.jsonl.1").write_text("\n".join(LINES[:4]) + "\n")
    path.write_text("\n".join(LINES[4:]) + "\n")
    return path


def test_for_programs(forerun: Callable[..., Any], log: Path) -> None:
    printed = json.loads(forerun("report", log, "--json").out)
    assert (printed["requests"], printed["bad_lines"], printed["unserved"]) == (7, [], {})
    groups = [(group["source"], group["layout"], group["num"]) for group in printed["groups"]]
    assert groups == [("ram", "contiguous", 6), ("ssd", "paged(64)", 1)]
    (slow,) = printed["slow"]
    assert (slow["id"], slow["report"]["paged_blocks"], len(slow["faults"])) == ("culprit", 400, 2)


def test_for_people(forerun: Callable[..., Any], log: Path) -> None:
    text = " ".join(forerun("report", log).out.split())
    assert text.startswith("7 requests ")
    assert " ram contiguous 6 20,000-22,500 400.0 50.0 0.0 2.50 100% " in text
    assert " 1 11-29 20:00 21,200 1,000 60.0 0.15x 32.0 0.64x 0.0 16.00 6.40x " in text
    assert " 1 culprit (ssd): prefilled in paged(64), requested contiguous; decoded in paged(64), requested " in text


def test_what_ran_beside_others(forerun: Callable[..., Any], log: Path) -> None:
    beside = replace(FAULTY, others_s=1.25, sequences_per_round=2.0, rows_per_round=5.5, forked_from="s2")
    log.with_name("one").write_text(encode(entry(20_000, beside)))
    text = forerun("report", log.with_name("one")).out
    assert "1 request beside others: 2.0 sequences and 5.5 rows a round, 1.2 s for others; 1 forked" in text
    printed = json.loads(forerun("report", log.with_name("one"), "--json").out)
    assert (printed["sharing"]["num"], printed["sharing"]["rows_per_round"]) == (1, 5.5)


def test_misses_are_counted_by_reason(forerun: Callable[..., Any], log: Path) -> None:
    missed = [Miss("differs", 9, f"message {i} (user)", "content", "", "") for i in range(2)] + [Miss("new", 0, "", "", "", "")]
    reports = [replace(RAM[0].report, reason="r", computed_tokens=1000, miss=each) for each in missed if RAM[0].report]
    log.write_text("".join(f"{encode(replace(RAM[0], id=f'r{i}', report=report))}\n" for i, report in enumerate(reports)))
    text = " ".join(forerun("report", log).out.split())
    assert " differs content of a message (user) 2 2,000 new 1 1,000 " in text
    first, second = json.loads(forerun("report", log, "--json").out)["missed"]
    assert (first["location"], first["last_id"], second["last_id"]) == ("content of a message (user)", "r1", "r2")
    assert "last request of each: r1 (differs), r2 (new)" in text


def test_one_request_whose_client_left(forerun: Callable[..., Any], log: Path) -> None:
    left = replace(RAM[0], outcome="cancelled", error="ForerunError: the client disconnected", report=None)
    log.with_name("one").write_text(encode(left))
    text = forerun("report", log.with_name("one")).out
    assert text.startswith("1 request\n")
    assert "1 not completed: the client disconnected\n" in text


def test_the_servers_own_log(forerun: Callable[..., Any], log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_REQUEST_LOG", str(log))
    assert forerun("report").out.startswith("7 requests\n")


def test_invalid_lines_are_reported(forerun: Callable[..., Any], log: Path) -> None:
    log.write_text(f"half a l\n{LINES[0]}\n")
    assert "\nline 5 is not an entry of a request log: the line: Invalid JSON" in forerun("report", log).out
    assert "None was slower than its peers" in forerun("report", log).out


def test_a_missing_or_empty_log(forerun: Callable[..., Any], tmp_path: Path) -> None:
    ran = forerun("report", tmp_path / "none")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"forerun: cannot read {tmp_path / 'none'}: ")
    (tmp_path / "empty").write_text("")
    assert forerun("report", tmp_path / "empty").err.startswith(f"forerun: {tmp_path / 'empty'} holds no request\n")
