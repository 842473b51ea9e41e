"""What decides in the benchmarks of several requests at once: rates, gaps of a trace, growth of a footprint; and the soak, shortened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
PACKAGES = ("agents", "soaking", "traced", "llama", "evidence")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules as the scripts import them."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import agents
    import soaking.clients
    import soaking.lives
    import traced.gaps

    yield {"agents": agents, "lives": soaking.lives, "clients": soaking.clients, "gaps": traced.gaps}
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def test_decoding_alone_is_what_arrives_while_all_decode(parts: dict[str, ModuleType]) -> None:
    """The first answer has its tokens at 1, 2, ... and the second twice as fast from 11 on: both decode from 11 to 74."""
    agents = parts["agents"]
    one = agents.Stream(0.0, tuple((1.0 + i, "word ") for i in range(128)), 128, {})
    two = agents.Stream(0.0, tuple((11.0 + i / 2, "word ") for i in range(128)), 128, {})
    found = agents.times_of([one, two])
    assert found["decode_s"] == pytest.approx(63.5)
    assert found["decode_tok_per_s"] == pytest.approx((63 + 127) / 63.5, rel=0.02)
    assert (found["last_s"], found["ttft_s"], found["all_tok_per_s"]) == (128.0, 6.0, 2.0)


def test_without_a_time_in_which_all_decode_there_is_no_rate(parts: dict[str, ModuleType]) -> None:
    agents = parts["agents"]
    one, two = (agents.Stream(0.0, ((start, "word"), (start + 1, " word")), 128, {}) for start in (1.0, 3.0))
    assert agents.times_of([one, two])["decode_tok_per_s"] is None
    with pytest.raises(RuntimeError, match="answers of"):
        agents.times_of([agents.Stream(0.0, ((1.0, "word"),), 127, {})])


def test_a_target_is_met_missed_or_not_measured(parts: dict[str, ModuleType]) -> None:
    rows = [
        ("forerun drafts", 1, 100.0),
        ("forerun drafts", 8, 230.0),
        ("forerun plain", 8, 250.0),
        ("llama f32", 8, 280.0),
        ("llama bf16", 8, 290.0),
    ]
    medians = [{"arm": arm, "count": count, "sampling": "greedy", "decode_tok_per_s": rate} for arm, count, rate in rows]
    found = list(parts["agents"].holds(medians).values())
    assert found == [True, None, False, None, False]


def test_a_gap_of_a_trace_holds_what_lies_between_two_rounds_of_a_request(parts: dict[str, ModuleType]) -> None:
    def line(kind: str, *requests: str) -> dict[str, Any]:
        return {"kind": kind, "start_s": 0.0, "stop_s": 1.0, "requests": list(requests)}

    trace = [line("piece", "c"), line("round", "a"), line("piece", "c"), line("round", "a", "b"), line("piece", "c"), line("capture")]
    trace += [line("round", "a"), line("piece", "c"), line("round", "a", "b")]
    found = parts["gaps"].summary(trace)
    assert found["gaps"] == 4
    assert found["most_in_a_gap"] == {"piece": 2, "capture": 1, "admit": 0, "store": 0}  # of b, which missed a round
    assert found["seconds"]["store"] is None


@pytest.mark.parametrize(("last", "growth"), [(100.0, 0.0), (103.0, 0.03)])
def test_growth_counts_from_when_the_ram_is_full(parts: dict[str, ModuleType], last: float, growth: float) -> None:
    lives: Any = parts["lives"]
    life = lives.Life(None, 0.0, "SIGTERM")
    footprints = [10.0, 50.0, *[100.0] * 4, *[last] * 4]
    life.rests = [
        {"at_s": float(i), "rss_bytes": each, "mlx_active_bytes": 1000.0 * (i % 3) + each, "bank_ram_bytes": 1000.0 * (i % 3)}
        for i, each in enumerate(footprints)
    ]
    life.series = life.rests
    found = life.growth(0.0, 2000)
    assert (found["ram_full_s"], found["rests"]) == (2.0, 8)
    assert found["other_active_bytes"] == pytest.approx(growth)
    assert found["rss_bytes"] == pytest.approx(growth)
    assert life.growth(5.0, 2000)["rss_bytes"] is None  # too few


@pytest.mark.parametrize(("text", "num_tokens", "num_wrong"), [("a", 1, 0), ("b", 1, 1), ("a", 2, 1)])
def test_an_answer_that_differs_from_its_bypass_answer_is_wrong(
    parts: dict[str, ModuleType], text: str, num_tokens: int, num_wrong: int
) -> None:
    clients: Any = parts["clients"]
    report = {"source": "ram", "forked_from": ""}
    tally = clients.Tally()
    tally.compare({}, clients.Answer("a", 1, "length", report), clients.Answer(text, num_tokens, "length", report))
    assert (tally.counts["compared"], tally.counts["wrong"], len(tally.wrong)) == (1, num_wrong, num_wrong)


def test_a_short_soak_finds_no_wrong_token_and_no_error(tmp_path: Path) -> None:
    """Two minutes, three servers, of which one is killed, and clients that mostly pause: a test of answers, not of growth."""
    out = tmp_path / "out.json"
    options = ["--minutes", "2", "--life-minutes", "0.67", "--clients", "6", "--pause-s", "2", "--ram-bytes", str(16 << 20)]
    command = [sys.executable, "benchmarks/soak.py", *options, "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=2 * LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(out.read_text())
    assert all(found["holds"].values())
    assert [life["end"] for life in found["lives"]][:2] == ["SIGTERM", "SIGKILL"]
