"""The original fault, put into a real server: every answer stays right, and `forerun report` finds it from the request log alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.layouts.table import checks, markdown

from forerun.demo.server import Server
from forerun.serve.client import Delta, End, stream_chat

ROOT = Path(__file__).parents[2]
SCRIPT = "benchmarks/restore_layout.py"
TURNS = ["Hello! " * 60, "Go on.", "And then?"]


def ran(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


def answer(server: Server, messages: list[dict[str, str]], bank: str) -> tuple[str, dict[str, Any]]:
    """The text, and what the response says of itself."""
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, "enable_thinking": False, "forerun": {"bank": bank}}
    pieces = list(stream_chat(server.url, body))
    assert isinstance(pieces[-1], End)
    return "".join(piece.text for piece in pieces if isinstance(piece, Delta)), pieces[-1].report


def test_the_fault_is_silent_but_for_the_request_log(tmp_path: Path) -> None:
    folder = ["--bank-dir", str(tmp_path / "bank"), "--request-log", str(tmp_path / "log.jsonl")]
    command = [sys.executable, str(ROOT / "benchmarks" / "layouts" / "fault.py"), "serve", "--port", "0", "--json", *folder]
    messages: list[dict[str, str]] = []
    reports = []
    for turns in (TURNS[:1], TURNS[1:]):
        server = Server.start(command, tmp_path / "server.log")
        try:
            for asked in turns:
                messages.append({"role": "user", "content": asked})
                text, report = answer(server, messages, "use")
                assert text == answer(server, messages, "bypass")[0]
                messages.append({"role": "assistant", "content": text})
                reports.append(report)
            server.stop()
        finally:
            server.kill()
    assert [(r["source"], r["prefill_layout"], r["step_kind"]) for r in reports] == [
        ("cold", "contiguous", "compiled"),
        ("ssd", "paged(64)", "eager"),
        ("ram", "contiguous", "compiled"),
    ]
    told = json.loads(ran("-m", "forerun.cli", "report", tmp_path / "log.jsonl", "--json").stdout)
    faulty = [each for each in told["slow"] if each["faults"]]
    assert [each["report"]["session"] for each in faulty] == [reports[1]["session"]]
    assert faulty[0]["report"]["source"] == "ssd"
    assert len(faulty[0]["faults"]) == 2
    assert any("ran eager (context_above_threshold)" in cause for cause in faulty[0]["causes"])


def test_a_dry_run_says_what_would_be_done() -> None:
    told = ran(SCRIPT, "--dry-run", "--arms", "fault", "--scale", "full").stdout
    assert "fault.py serve --port 0 --bank-dir FOLDER" in told
    assert "at scale full: A1 (cold), A2 (ssd), A3 (ram), A4 (ssd), A5 (ram); restarted before A2 and A4; 256 then 768" in told
    assert "pairs" not in told


def turn(name: str, prefill: float, **report: Any) -> dict[str, Any]:
    path = {"A1": "cold", "A2": "ssd"}[name]
    known = {"source": path, "prefill_tok_per_s": prefill, "decode_tok_per_s": 50.0, "ttft_s": 1.0, "paged_blocks": 0}
    told = known | {"compiled_steps": 10, "steps": 10} | report
    return {"turn": name, "path": path, "text": "t", "usage": {"prompt_tokens": 1200}, "report": told}


def result(ssd: dict[str, float]) -> dict[str, Any]:
    """Of a run in which the fault halves the speed of reading."""
    good = [turn("A1", 400.0), turn("A2", 300.0)]
    bad = [turn("A1", 400.0), turn("A2", 150.0, paged_blocks=24, compiled_steps=0, decode_tok_per_s=20.0)]
    arms = {"asked": {"sampled": good, "greedy": good, "flagged": []}, "fault": {"sampled": bad, "greedy": bad, "flagged": ["A2"]}}
    return {"arms": arms, "pairs": {"ratios": {"prefill_tok_per_s": ssd}, "answers_equal": True}}


def test_the_table_has_the_arms_side_by_side() -> None:
    lines = markdown(result({"low": 1.0, "high": 1.0})).splitlines()
    assert lines[2] == "| A1 | cold | 1,200 | 400.0 | 50.0 | 1.00 | 0 | 10/10 |"
    assert lines[3] == "| A2 | ssd | 1,200 | 300.0 → 150.0 | 50.0 → 20.0 | 1.00 | 0 → 24 | 10/10 → 0/10 |"


@pytest.mark.parametrize(("low", "high", "holds"), [(0.96, 1.04, True), (0.94, 1.0, False), (1.0, 1.06, False)])
def test_what_must_hold(low: float, high: float, holds: bool) -> None:
    found = {each["what"]: each for each in checks(result({"low": low, "high": high}))}
    assert found["prefill_tok_per_s: SSD over RAM"]["holds"] == holds
    assert found["prefill_tok_per_s after SSD restores: asked over fault"]["value"] == 2.0
    assert found["all steps of arm asked compiled"]["holds"]
    assert not found["faults that the request log shows"]["holds"]


@pytest.mark.long
def test_the_whole_benchmark(tmp_path: Path) -> None:
    assert ran(SCRIPT, "--out", tmp_path / "result.json").returncode == 0
    told = json.loads((tmp_path / "result.json").read_text())
    holding = {each["what"]: each["holds"] for each in told["checks"]}
    for what in ("all steps of arm asked compiled", "greedy answers of all arms are equal", "greedy answers from SSD and RAM are equal"):
        assert holding[what]
    assert [turn["report"]["source"] for turn in told["arms"]["asked"]["sampled"]] == ["cold", "ssd", "ram", "ssd", "ram"]
    assert told["arms"]["fault"]["flagged"] == ["A2", "A4"]


def test_the_page_shows_the_result() -> None:
    page = (ROOT / "docs" / "restore-layout.md").read_text()
    assert markdown(json.loads((ROOT / "benchmarks" / "results" / "restore_layout.json").read_text())) in page
