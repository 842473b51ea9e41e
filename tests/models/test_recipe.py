"""Which matrix gets how many bits."""

from __future__ import annotations

import pytest

from forerun.errors import ConfigError
from forerun.kernels.quantised import Scheme
from forerun.models.recipe import PRESETS, Recipe

FOUR = Scheme("affine", 4, 32)
PATHS = {"lm_head", "model.embed_tokens", "model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate", "mtp.fc"}


def bits(recipe: Recipe, path: str, inner: int = 128) -> int:
    scheme = recipe.scheme(path, inner)
    return scheme.bits if scheme else 16


def test_the_last_pattern_that_matches_wins() -> None:
    recipe = Recipe(FOUR, (("*.down_proj", 8),), (("*.0.mlp.*", 6), ("lm_head", 16)), False)
    assert [bits(recipe, f"model.layers.{i}.mlp.down_proj") for i in (0, 1)] == [6, 8]
    assert [bits(recipe, path) for path in ("model.layers.1.mlp.up_proj", "lm_head")] == [4, 16]


def test_what_stays_plain() -> None:
    recipe = Recipe(FOUR, (), (("*", 4),), False)
    assert [bits(recipe, path) for path in ("mtp.fc", "model.layers.0.mlp.gate", "model.layers.0.mlp.shared_expert_gate")] == [16, 16, 16]
    assert bits(recipe, "lm_head", inner=48) == 16
    assert bits(Recipe(FOUR, (), (), True), "mtp.fc") == 4


def test_the_mix_of_the_original_report() -> None:
    recipe = Recipe(FOUR, PRESETS["optimized-speed"]({"text_config": {"num_hidden_layers": 64}}), (), False)
    finer = ("model.embed_tokens", "lm_head", "model.layers.0.linear_attn.out_proj", "model.layers.56.mlp.up_proj")
    coarser = ("model.layers.0.linear_attn.in_proj_qkv", "model.layers.3.self_attn.o_proj", "model.layers.55.mlp.down_proj")
    assert [bits(recipe, path) for path in (*finer, *coarser)] == [8, 8, 8, 8, 4, 4, 4]
    recipe.check(PATHS)


@pytest.mark.parametrize(
    ("recipe", "complaint"),
    [
        (Recipe(Scheme("affine", 7, 32), (), (), False), "7 bits in groups of 32"),
        (Recipe(Scheme("affine", 4, 48), (), (), False), "4 bits in groups of 48"),
        (Recipe(FOUR, (), (("lm_head", 1),), False), "1 bits"),
        (Recipe(FOUR, (), (("*.down", 8),), False), r"\*\.down: no matrix of this model matches"),
        (Recipe(FOUR, (), (("mtp.*", 8),), False), "the MTP head stays as it is"),
    ],
)
def test_invalid_recipes(recipe: Recipe, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        recipe.check(PATHS)


def test_the_head_if_forced() -> None:
    Recipe(FOUR, (), (("mtp.*", 8),), True).check(PATHS)
