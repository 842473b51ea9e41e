"""The GPU benchmark runs through on this machine in its tiny form, every part of it; and a part that fails does not end it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.on_gpu.report import Report

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long
PARTS = {
    "machine": {"evidence", "launch_us"},
    "correct": {
        "kernel_error",
        "compiled_against_eager_contiguous",
        "out_and_back_paged(64)",
        "write_in_place",
        "host",
        "chunked_delta_rule",
        "delta_rule_error",
        "delta_inputs_error",
        "quantised_error",
    },
    "bundled": {"reference_outputs", "step_8_compiled", "draft_eager", "drafting_greedy_compiled", "drafting_sampled_eager"},
    "shape-27B-4bit": {"step_4_compiled", "mlx_lm_step_4_at_1100", "ratios"},
    "batch": {"bundled_drafts", "rounds_contiguous", "rounds_paged(64)"},
    "quantised": {"128 x 512, 8 rows"},
    "shape-27B": {
        "floor",
        "step_4_eager",
        "pieces_1_compiled",
        "step_1_paged(64)_at_1100",
        "attention_8_at_1100",
        "delta_rule_4",
        "restore_ssd",
        "ratios",
    },
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("gpu") / "result.json"
    command = [
        sys.executable,
        "benchmarks/gpu.py",
        "--tiny",
        "--sections",
        "correct,bundled,batch,quantised,shape-27B,shape-27B-4bit",
        "--out",
        str(out),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_every_part_ran(result: dict[str, Any]) -> None:
    failed = {f"{s}/{name}": part for s, parts in result["sections"].items() for name, part in parts.items() if is_failure(part)}
    assert failed == {}
    assert {s: set(parts) & PARTS[s] for s, parts in result["sections"].items()} == PARTS


def is_failure(part: Any) -> bool:
    return isinstance(part, dict) and bool({"failed", "left_out"} & part.keys())


def test_its_checks_hold(result: dict[str, Any]) -> None:
    correct, bundled = result["sections"]["correct"], result["sections"]["bundled"]
    assert correct["contiguous_against_paged"]["difference"] == 0
    assert correct["out_and_back_contiguous"] == correct["out_and_back_paged(64)"] == {"contiguous": True, "paged(64)": True}
    assert correct["fork_contiguous"] == correct["fork_paged(64)"] == {"contiguous": True, "paged(64)": True}
    assert correct["chunked_delta_rule"]["y_float32"] < 1e-5
    assert bundled["reference_outputs"]["logit_error"] < 0.5
    assert result["sections"]["shape-27B"]["keep_on_ssd"]["is_safe"]
    assert result["sections"]["shape-27B"]["ratios"]["step_1_at_1100"] > 0


def test_a_part_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    report = Report(tmp_path / "out.json", {"commit": "here"}, limit_s=60)
    assert report.part("one", "bad", lambda: 1 / 0) is None
    assert report.part("one", "good", lambda: {"ms": 2.5}) == {"ms": 2.5}
    written = json.loads((tmp_path / "out.json").read_text())
    assert "ZeroDivisionError" in written["sections"]["one"]["bad"]["failed"]
    assert (written["sections"]["one"]["good"], written["commit"]) == ({"ms": 2.5}, "here")
    assert (report.find("one", "good", "ms"), report.find("one", "bad", "ms"), report.find("two", "x")) == (2.5, None, None)


def test_no_part_begins_after_the_limit(tmp_path: Path) -> None:
    report = Report(None, {}, limit_s=-1)
    assert report.part("one", "late", lambda: pytest.fail("it began")) is None
    assert set(report.result["sections"]["one"]["late"]) == {"left_out"}
