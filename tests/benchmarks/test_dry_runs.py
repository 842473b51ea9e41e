"""Each benchmark can be started: its imports and its options are those of the code that it measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text())
OPTIONS = {"against_llama_cpp.py": ["--llama-server", "llama-server", "--gguf-py", "gguf-py"]}
# One process for all of them, since each would load MLX.
PROGRAM = """
import json, runpy, sys

for sys.argv in json.loads(sys.argv[1]):
    runpy.run_path(sys.argv[0], run_name="__main__")
    print("done", sys.argv[0])
"""


def test_every_benchmark_says_what_it_would_do() -> None:
    commands = [[str(path), *OPTIONS.get(path.name, []), "--dry-run"] for path in SCRIPTS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("src", "benchmarks", "."))}
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stderr
    told = ran.stdout.splitlines()
    assert [line for line in told if line.startswith("done ")] == [f"done {path}" for path in SCRIPTS]
    assert len(told) >= 2 * len(SCRIPTS), "one says nothing"
