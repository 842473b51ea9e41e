"""tools/crash_loop.py: a few cycles in every run, a thousand among the long tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("cycles", [5, pytest.param(1000, marks=pytest.mark.long)])
def test_restored_state_after_kills_is_right_and_every_byte_accounted_for(cycles: int) -> None:
    command = [sys.executable, "-W", "ignore", "tools/crash_loop.py", "--cycles", str(cycles), "--seed", "4"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    counts = json.loads(process.stdout)
    assert counts["killed_at_work"] == cycles >= counts["opened"] > 0
    assert counts["turns"] > counts["reused_turns"] > 0
