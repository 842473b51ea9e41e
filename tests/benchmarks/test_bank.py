"""What docs/bank.md says of costs is what the result file says; and each part of the benchmark still runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def stats(found: dict[str, Any]) -> list[str]:
    """The page's words, with the result's figures."""
    rows = [f"{row['median_ms']:.1f}" for row in found["look_up"]["measured"]]
    total, over, saving, cold = found["written"]["total"], found["written"]["over_floor"], found["saving"], found["restoring"]
    parts = [100 * total[name] / total["bytes"] for name in ("segment_bytes", "snapshot_bytes")]
    ratio = saving["saving_over_not"]
    return [
        f"takes {rows[0]} ms at 10 stored conversations, {rows[1]} at 1,000 and {rows[2]} at 100,000",
        f"wrote {total['bytes'] / 1e6:.1f} MB, {over:.2f} times the minimum: {parts[0]:.0f} % rows of tokens",
        f"{parts[1]:.0f} % snapshots, {100 - sum(parts):.0f} % the index and its log",
        f"{ratio['median']:.2f} times as long as others (90 % interval {ratio['low']:.2f} to {ratio['high']:.2f})",
        f"99 of 100 steps took {saving['saving']['p99_ms']:.1f} ms at most, {saving['not']['p99_ms']:.1f} without",
        f"reads {cold['read_over_needed']:.3f} times the bytes of the tokens and one snapshot",
        f"takes {cold['restore_over_plain_read']['median']:.2f} of the time",
    ]


def test_the_page_says_what_was_measured() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "bank.json").read_text())
    page = " ".join((ROOT / "docs" / "bank.md").read_text().split())
    assert [words for words in stats(found) if words not in page] == []
    assert found["checks"]
    assert all(found["checks"].values())


def test_the_page_says_what_a_thousand_kills_showed() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "crash_loop.json").read_text())
    page = " ".join((ROOT / "docs" / "bank.md").read_text().split())
    assert f"{found['cycles']:,} kills and {found['turns']:,} turns, {found['reused_turns']:,} of them from stored state, showed no" in page
    assert (found["cycles"], found["killed_at_work"]) == (1000, 1000)
    assert found["wrong_logits"] == found["unaccounted"] == found["over_the_cap"] == found["failed"] == 0


@pytest.mark.long
@pytest.mark.parametrize("part", ["look_up", "written", "saving", "restoring"])
def test_it_can_be_measured(part: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "benchmarks/bank.py", "--parts", part, "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=900)
    assert json.loads(out.read_text())["checks"]
