"""`forerun demo` on a scripted server: the table, the sentence, the file and the exit code."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.wire import Wire, report, serving, stream

from benchmarks import five_turns
from forerun.cli.demo import MODEL
from forerun.demo.compare import NearTies
from forerun.demo.turns import STEPS
from forerun.text.tokenizer import Tokenizer

Forerun = Callable[..., Any]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Wire]:
    """A scripted server that stands for every server process that the demo starts."""
    with serving() as wire:
        monkeypatch.setattr("forerun.cli.demo.Server", _Double(wire))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        yield wire


class _Double:
    def __init__(self, wire: Wire) -> None:
        self.url, self.line = wire.url, {"model": "scripted", "url": wire.url, "pid": 1, "bank_dir": "elsewhere"}

    def start(self, command: list[str], log: Path) -> _Double:
        log.touch()
        return self

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def wait_until_written(self) -> None: ...


def script(wire: Wire, fourth: dict[str, Any]) -> None:
    """Five turns of 1,000 tokens and 100 more each, as promised but for the fourth."""
    for number, step in enumerate(STEPS):
        cached = 1000 + 100 * (number - 1) if number else 0
        of = report(step.source, cached, 1000 + 100 * number - cached, ttft_s=0.1 if number else 1.0)
        wire.answers.append(stream("same", of | (fourth if number == 3 else {})))
        wire.answers.append(stream("same", report("cold", 0, 1000 + 100 * number, ttft_s=1.0, reason="bypass")))


def test_as_promised(forerun: Forerun, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(wire, {})
    monkeypatch.setenv("COLUMNS", "80")
    ran = forerun("demo", "--out", tmp_path / "result.json")
    assert ran.code == 0
    assert "  user   Explain these errors.\n  model  same\n" in ran.out
    assert "A4: 1,200 of 1,300 tokens cached; first token after 0.10 s instead of 1.00 s\n" in ran.out
    (row,) = (row for row in ran.out.splitlines() if row.startswith("A4   "))
    assert row.split() == ["A4", "ssd,", "kill", "-9", "1,300", "1,200", "100", "0.10", "100", "50", "contiguous", "equal"]
    finding = "After the first turn 4,600 of 5,000 prompt tokens were reused: 0.40 s until the first tokens instead of 4.00 s."
    assert f"{finding} 5 of 5 answers are the same as without stored state." in " ".join(ran.out.split())
    written = json.loads((tmp_path / "result.json").read_text())
    assert [turn["turn"] for turn in written["turns"]] == ["A1", "A2", "A3", "A4", "A5"]
    assert (written["faults"], written["server"]) == ([], {"model": "scripted"})
    assert "| A4 | ssd, kill -9 | 1,300 | 1,200 | 0.10 | 1.00 | 100 | 50 | contiguous | equal |" in five_turns.markdown(written)
    assert list(tmp_path.glob("forerun-demo-*")) == []


def test_a_broken_promise_fails_and_keeps_the_log(forerun: Forerun, wire: Wire, tmp_path: Path) -> None:
    script(wire, {"source": "cold", "reused_tokens": 0, "computed_tokens": 1300, "reason": "no snapshot"})
    ran = forerun("demo")
    assert ran.code == 1
    assert "A4: restored from cold, not ssd (no snapshot)" in ran.out
    assert "cold, not ssd, kill -9" in ran.out
    assert [path.name for path in tmp_path.glob("forerun-demo-*/*")] == ["server.log"]


def test_fast_answers_may_diverge_at_near_ties(forerun: Forerun, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []

    def near_ties(*tokens: Any) -> NearTies:
        requests.append(tokens)
        return NearTies(1, 1e-5, 1e-4)

    monkeypatch.setattr("forerun.cli.demo.near_ties", near_ties)
    script(wire, {"numerics": "fast"})
    wire.answers[6] = stream("other", report("ssd", 1200, 100, numerics="fast"))
    ran = forerun("demo")
    assert ran.code == 0
    assert "A4: 1 near-ties, largest gap 1.0e-05 <= bound 1.0e-04\n" in ran.out
    ((prompt, *answers),) = requests
    tokenizer = Tokenizer.load(MODEL)
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert [tokenizer.decode(answer) for answer in answers] == ["other", "same"]


def test_an_error_midway_keeps_the_log(forerun: Forerun, wire: Wire, tmp_path: Path) -> None:
    wire.answers.append((500, {"error": {"message": "a step failed"}}))
    ran = forerun("demo")
    assert (ran.code, ran.err) == (1, "forerun: the server answers: a step failed\n")
    assert [path.name for path in tmp_path.glob("forerun-demo-*/*")] == ["server.log"]
