"""Fused, separate or numbered experts are the same model; missing ones are reported."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from tests import families, tiny
from tests.families import EXPERTS, QWEN3_5_MOE, QWEN3_NEXT, VOCAB
from tests.running import empty, step

from forerun.errors import ModelError

TOKENS = [token % VOCAB for token in tiny.words("experts", 40)]


def logits(config: dict[str, Any], named: families.Tensors) -> mx.array:
    family = families.built(config, named)
    return step(family, empty(family), TOKENS)


def separate(named: families.Tensors, *, is_numbered: bool) -> families.Tensors:
    """Fused experts, split."""
    made: families.Tensors = {}
    for name, tensor in named.items():
        if not name.endswith("_proj"):
            made[name] = tensor
            continue
        prefix, _, module = name.rpartition(".")
        parts = (
            dict(zip(("gate_proj", "up_proj"), mx.split(tensor, 2, axis=1), strict=True)) if module == "gate_up_proj" else {module: tensor}
        )
        for part, whole in parts.items():
            one_by_one = {f"{prefix}.{i}.{part}.weight": whole[i] for i in range(EXPERTS)}
            made |= one_by_one if is_numbered else {f"{prefix.replace('experts', 'switch_mlp')}.{part}.weight": whole}
    return made


@pytest.mark.parametrize("is_numbered", [True, False], ids=["numbered", "separate"])
def test_all_ways_to_store_experts(is_numbered: bool) -> None:
    named = families.tensors("qwen3_5_moe")
    assert mx.array_equal(logits(QWEN3_5_MOE, separate(named, is_numbered=is_numbered)), logits(QWEN3_5_MOE, named))


def test_an_expert_that_is_missing() -> None:
    named = families.tensors("qwen3_next")
    del named["model.layers.0.mlp.experts.2.up_proj.weight"]
    with pytest.raises(
        ModelError, match=r"missing: model\.layers\.0\.mlp\.experts\.up_proj\.weight; unknown: model\.layers\.0\.mlp\.experts\.0\.up"
    ):
        families.built(QWEN3_NEXT, named)


def test_many_missing_names_are_counted() -> None:
    named = {name: tensor for name, tensor in families.tensors("qwen3_5_moe").items() if not name.startswith("model.")}
    with pytest.raises(ModelError, match=r"missing: .*model\.layers\.1\.post_attention_layernorm\.weight and 7 more$"):
        families.built(QWEN3_5_MOE, named)


def test_an_expert_of_another_shape() -> None:
    named = families.tensors("qwen3_next")
    named["model.layers.0.mlp.experts.2.up_proj.weight"] = mx.zeros((3, 3))
    with pytest.raises(ModelError, match=r"unknown: .*experts\.2\.up_proj"):
        families.built(QWEN3_NEXT, named)


def test_expert_weights_without_normalisation() -> None:
    named = families.tensors("qwen3_next")
    assert float(mx.abs(logits(QWEN3_NEXT | {"norm_topk_prob": False}, named) - logits(QWEN3_NEXT, named)).max()) > 1e-3


def test_a_missing_field_is_named() -> None:
    config = {name: value for name, value in QWEN3_NEXT.items() if name != "num_experts_per_tok"}
    with pytest.raises(ModelError, match="lacks 'num_experts_per_tok'"):
        families.built(config, families.tensors("qwen3_next"))
