"""What docs/performance.md says is what its result files say; and the scripts that wrote them still run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S

from benchmarks import evidence

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text()


@pytest.fixture(autouse=True)
def _as_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts find what is beside them."""
    monkeypatch.setitem(sys.modules, "evidence", evidence)


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / name).read_text())
    return found


def test_the_table_is_that_of_the_result() -> None:
    from benchmarks.against_mlx_lm import markdown

    found = result("against_mlx_lm.json")
    assert markdown(found) in PAGE
    assert f"in {100 * found['restored_ratio']:.0f} % of mlx-lm's time" in PAGE
    assert f"{found['same_answers']} of the 15 answers" in PAGE
    assert found["restored_ratio"] <= 0.2


def test_the_servers_cost_is_that_of_the_result() -> None:
    found = result("serve.json")
    assert f"costs {found['server_ms_per_token']:.2f} ms" in PAGE
    assert f"A prompt of {found['prompt_tokens']:,} tokens" in PAGE
    assert f"first token {found['server_ms_to_first_token']:.0f} ms after" in PAGE
    assert (found["server_ms_per_token"] <= 0.3, found["server_ms_to_first_token"] <= 150) == (True, True)


def test_the_servers_cost_can_be_measured(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/serve.py", "--repeats", "1", "--prompt-tokens", "300", "--answer-tokens", "40"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    subprocess.run(
        [*command, "--out", str(tmp_path / "out.json")], cwd=ROOT, env=environment, check=True, capture_output=True, timeout=LIMIT_S
    )
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["samples"]["stream_s"]) == 1
    assert found["server_ms_per_token"] > 0
    assert found["prompt_tokens"] >= 300
