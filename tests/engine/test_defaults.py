"""Where default sampling comes from: the checkpoint, else the model card, else neutral."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.engine.defaults import defaults_of
from forerun.errors import ModelError

PLAIN, QWEN = (1.0, 1.0, 0, 0.0), (0.6, 0.95, 20, 0.0)


@pytest.mark.parametrize(
    ("model_type", "generation", "expected"),
    [
        ("llama", {}, PLAIN),
        ("qwen3_5", {}, QWEN),
        ("qwen3_5_moe", {"eos_token_id": [1, 2]}, QWEN),
        ("qwen3_5", {"temperature": 1.0, "top_p": 0.9}, (1.0, 0.9, 0, 0.0)),
        ("qwen3_5", {"do_sample": False}, (0.0, 1.0, 0, 0.0)),
        ("llama", {"temperature": 0.7, "min_p": 0.1, "top_k": 5}, (0.7, 1.0, 5, 0.1)),
    ],
)
def test_order_of_the_defaults(tmp_path: Path, model_type: str, generation: dict[str, Any], expected: tuple[float, ...]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    sampling = defaults_of(tmp_path)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == expected


def test_no_files(tmp_path: Path) -> None:
    assert defaults_of(tmp_path).temperature == 1.0


def test_a_value_of_the_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(ModelError, match=r"generation_config\.json: a value has the wrong type"):
        defaults_of(tmp_path)
