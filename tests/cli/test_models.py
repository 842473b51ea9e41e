"""`forerun models` on folders whose weights are holes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import checkpoints, gguf

from forerun.models.load import DEMO_MODEL

Forerun = Callable[..., Any]
CONFIG = checkpoints.dense(1024, 24, 3584, 8, 2, 16, tied=True)


def test_inspect_for_people(forerun: Forerun, tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "m", CONFIG, checkpoints.tensors(CONFIG))
    ran = forerun("models", "inspect", tmp_path / "m")
    assert (ran.code, ran.err) == (0, "")
    assert "family       qwen3_5\nparameters   772.8 M; 1.5 GB in files\nMTP head     among the weights, BF16\n" in ran.out
    assert "conversation 28.7 MB for 1,000 tokens" in ran.out
    assert [line.split()[0] for line in ran.out.splitlines() if "BF16 " in line and "head" not in line][:2] == ["mtp", "embedding"]


def test_inspect_of_the_bundled_model(forerun: Forerun) -> None:
    ran = forerun("models", "inspect")
    assert (ran.code, ran.out.splitlines()[:2]) == (0, ["demo-model", "family       qwen3_5"])


def test_inspect_for_programs(forerun: Forerun, tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "m", CONFIG, checkpoints.tensors(CONFIG))
    facts = json.loads(forerun("models", "inspect", tmp_path / "m", "--json").out)
    assert (facts["family"], facts["supported"], facts["mtp"]) == ("qwen3_5", True, "among the weights, BF16")
    assert facts["here"]["bytes_per_1000_tokens"] == 1000 * 14 * 2048
    assert sum(kind["num_params"] for kind in facts["kinds"]) == facts["parameters"] + 64 * 64


def test_inspect_of_a_family_that_is_not_served(forerun: Forerun, tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "m", CONFIG | {"model_type": "mamba"}, checkpoints.tensors(CONFIG))
    ran = forerun("models", "inspect", tmp_path / "m")
    assert "family       mamba (not served: forerun does not implement this family)" in ran.out
    assert json.loads(forerun("models", "inspect", tmp_path / "m", "--json").out)["here"] is None


def test_an_invalid_name_is_not_pulled(forerun: Forerun) -> None:
    ran = forerun("models", "rm", "../../x")
    assert (ran.code, ran.err) == (
        1,
        "forerun: '../../x' is no model's name on the hub\nhint: `forerun models ls` lists what was pulled\n",
    )


def test_inspect_of_nothing(forerun: Forerun, tmp_path: Path) -> None:
    ran = forerun("models", "inspect", tmp_path / "none")
    assert ran.code == 1
    assert f"no such folder: {tmp_path / 'none'}" in ran.err


def test_a_model_in_one_file(forerun: Forerun, tmp_path: Path) -> None:
    file = gguf.write(tmp_path / "x.gguf")
    facts = json.loads(forerun("models", "inspect", file, "--json").out)
    assert (facts["family"], facts["mtp"], facts["supported"]) == ("llama", "none", True)
    ran = forerun("models", "convert", file, "small")
    assert (ran.code, "x.gguf is one file" in ran.err) == (3, True)


def test_convert(forerun: Forerun, tmp_path: Path) -> None:
    ran = forerun("models", "convert", DEMO_MODEL, tmp_path / "small", "--bits", "8", "--override", "*.up_proj=4", "--json")
    printed = json.loads(ran.out)
    assert (ran.code, printed["folder"]) == (0, str(tmp_path / "small"))
    facts = json.loads(forerun("models", "inspect", tmp_path / "small", "--json").out)
    assert (facts["parameters"], facts["bytes"], facts["mtp"]) == (printed["parameters"], printed["bytes"], "in mtp.safetensors, BF16")
    mlp = next(kind for kind in facts["kinds"] if kind["name"] == "mlp")
    assert set(mlp["formats"]) == {"8-bit affine, groups of 32", "4-bit affine, groups of 32"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--preset", "tiny"), "--preset tiny: there is no such"),
        (("--override", "*.up_proj"), "--override '*.up_proj'"),
        (("--override", "*.up_proj=lots"), "--override '*.up_proj=lots'"),
        (("--bits", "7"), "7 bits in groups of 32"),
        (("--override", "mtp.*=4"), "the MTP head stays as it is"),
    ],
)
def test_invalid_conversions(forerun: Forerun, tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    ran = forerun("models", "convert", DEMO_MODEL, tmp_path / "small", *arguments)
    assert (ran.code, complaint in ran.err) == (2, True)
    assert list(tmp_path.iterdir()) == []
