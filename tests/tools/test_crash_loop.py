"""tools/crash_loop.py: a few cycles each time, its thousand among the long tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("cycles", [5, pytest.param(1000, marks=pytest.mark.long)])
def test_what_comes_back_after_a_kill_is_right_and_accounted_for(cycles: int) -> None:
    command = [sys.executable, "-W", "ignore", "tools/crash_loop.py", "--cycles", str(cycles), "--seed", "4"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert found["killed_at_work"] == cycles >= found["opened"] > 0
    assert found["turns"] > found["reused_turns"] > 0
