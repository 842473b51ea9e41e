"""Llama: scaled rotary periods against mlx-lm, heads with adjacent pairs, and refused configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests import families, tiny
from tests.families import DIM, HIDDEN, LLAMA, VOCAB
from tests.running import empty, step

from forerun.errors import ModelError

TOKENS = [token % VOCAB for token in tiny.words("llama", 60)]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def logits(config: dict[str, Any], named: families.Tensors) -> mx.array:
    family = families.built(config, named)
    return step(family, empty(family), TOKENS)


def test_scaled_rotary_periods(tmp_path: Path) -> None:
    named, config = families.tensors("llama"), LLAMA | {"rope_scaling": LLAMA3}
    folder = families.write_hub(tmp_path / "hub", "llama", named)
    (folder / "config.json").write_text(json.dumps(config))
    expected = families.mlx_lm_logits(folder, TOKENS)
    assert float(mx.abs(logits(config, named) - expected).max()) < 1e-4
    assert float(mx.abs(logits(LLAMA, named) - expected).max()) > 1e-2


def test_heads_with_adjacent_rotary_pairs() -> None:
    named = families.tensors("llama")
    turned = {
        name: w.reshape(-1, 2, DIM // 2, HIDDEN).swapaxes(1, 2).reshape(-1, HIDDEN)
        if name.endswith(("q_proj.weight", "k_proj.weight"))
        else w
        for name, w in named.items()
    }
    found = logits(LLAMA | {"rope_traditional": True}, turned)
    assert float(mx.abs(found - logits(LLAMA, named)).max()) < 1e-4


@pytest.mark.parametrize("change", [{"attention_bias": True}, {"mlp_bias": True}, {"hidden_act": "gelu"}], ids=str)
def test_what_is_not_supported_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="does not support"):
        families.built(LLAMA | change, families.tensors("llama"))


def test_other_rope_types_are_refused() -> None:
    with pytest.raises(ModelError, match="rope_type 'yarn' is not supported"):
        families.built(LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, families.tensors("llama"))


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ModelError, match="lacks 'rope_theta'"):
        families.built({name: value for name, value in LLAMA.items() if name != "rope_theta"}, families.tensors("llama"))
