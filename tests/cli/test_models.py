"""`forerun models` on folders whose weights are holes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import checkpoints

Forerun = Callable[..., Any]
CONFIG = checkpoints.dense(1024, 24, 3584, 8, 2, 16, tied=True)


def test_inspect_for_people(forerun: Forerun, tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "m", CONFIG, checkpoints.tensors(CONFIG))
    ran = forerun("models", "inspect", tmp_path / "m")
    assert (ran.code, ran.err) == (0, "")
    assert "family       qwen3_5\nparameters   772.8 M; 1.5 GB in files\nMTP head     among the weights, BF16\n" in ran.out
    assert "conversation 28.7 MB for 1,000 tokens" in ran.out
    assert [line.split()[0] for line in ran.out.splitlines() if "BF16 " in line and "head" not in line][:2] == ["vision", "mtp"]


def test_inspect_for_programs(forerun: Forerun, tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "m", CONFIG, checkpoints.tensors(CONFIG))
    facts = json.loads(forerun("models", "inspect", tmp_path / "m", "--json").out)
    assert (facts["family"], facts["served"], facts["mtp"]) == ("qwen3_5", True, "among the weights, BF16")
    assert facts["here"]["bytes_per_1000_tokens"] == 1000 * 14 * 2048
    assert sum(kind["num_params"] for kind in facts["kinds"]) == facts["parameters"] + 64 * 64


def test_inspect_of_a_family_that_is_not_served(forerun: Forerun, tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "m", CONFIG | {"model_type": "mamba"}, checkpoints.tensors(CONFIG))
    ran = forerun("models", "inspect", tmp_path / "m")
    assert "family       mamba (not served: forerun has no such family)" in ran.out
    assert json.loads(forerun("models", "inspect", tmp_path / "m", "--json").out)["here"] is None


def test_inspect_of_nothing(forerun: Forerun, tmp_path: Path) -> None:
    ran = forerun("models", "inspect", tmp_path / "none")
    assert ran.code == 1
    assert f"no such folder: {tmp_path / 'none'}" in ran.err
