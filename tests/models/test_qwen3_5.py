"""The family against reference outputs, against mlx-lm on random weights, and its exact set of tensor names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests import tiny
from tests.running import empty, greedy, logits, read, step

from forerun.errors import ModelError
from forerun.kernels.numerics import EXACT, FAST, Numerics
from forerun.models.base import Family
from forerun.models.load import DEMO_MODEL
from forerun.models.names import canonical
from forerun.models.qwen3_5 import Config
from forerun.state.cache import Cache, lend

PROMPTS = json.loads((DEMO_MODEL / "reference.json").read_text())["prompts"]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: str(len(prompt["token_ids"])))
def test_agrees_with_the_reference_outputs(prompt: dict[str, Any]) -> None:
    check_reference_outputs(tiny.demo().family, prompt)


@pytest.mark.usefixtures("without_cpu_kernels")
def test_array_operations_agree_with_the_reference_outputs() -> None:
    """On the shortest prompt: they are slow on a CPU."""
    check_reference_outputs(tiny.demo(FAST).family, min(PROMPTS, key=lambda prompt: len(prompt["token_ids"])))


def check_reference_outputs(family: Family, prompt: dict[str, Any]) -> None:
    """Logits, greedy drafts and greedy tokens after the prompt."""
    cache = read(family, prompt["token_ids"])
    found = np.array(logits(family, cache))
    assert np.argsort(-found)[:5].tolist() == prompt["top5_ids"]
    assert np.abs(found[prompt["top5_ids"]] - prompt["top5_logits"]).max() < 1e-3
    assert drafts(family, cache, prompt["mtp_first_token"]) == prompt["mtp_greedy_drafts"]
    assert greedy(family, cache, 32) == prompt["greedy_32"]


def drafts(family: Any, cache: Cache[Any], token: int) -> list[int]:
    """Three greedy drafts after `token`; the cache is as before."""
    found, hidden = [token], cache.hidden[None]
    with lend([cache], family.numerics) as view:
        for _ in range(3):
            hidden = family.draft(hidden, mx.array(found[-1:]), [1], view)
            found.append(int(mx.argmax(family.head(hidden)[0])))
        view.keep_draft([0])
    return found[1:]


@pytest.fixture
def _not_compiled() -> Iterator[None]:
    """mlx-lm compiles parts of its models, which takes most of a minute on a new machine."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.parametrize("numerics", [EXACT, FAST], ids=lambda numerics: numerics.name, indirect=True)
@pytest.mark.usefixtures("_not_compiled")
def test_agrees_with_mlx_lm_on_random_weights(numerics: Numerics) -> None:
    tensors, tokens = tiny.weights(0), tiny.words("mlx-lm", 90)
    tensors["model.language_model.layers.0.linear_attn.conv1d.weight"] *= 2e-3  # inputs so small that every eps matters
    theirs, family = mlx_lm_model(tensors), tiny.built(tiny.CONFIG, tensors, numerics)
    state = theirs.make_cache()
    expected = [theirs(mx.array([tokens[:70]]), cache=state)[0]]
    expected += [theirs(mx.array([[token]]), cache=state)[0] for token in tokens[70:]]
    cache = empty(family)
    found = [step(family, cache, tokens[:70]), *(step(family, cache, [token]) for token in tokens[70:])]
    difference = mx.concatenate(expected) - mx.concatenate(found)
    assert float(mx.abs(difference).max()) < 1e-4
    assert float(mx.abs(mx.concatenate(found)).max()) > 1  # there is something to compare


def mlx_lm_model(tensors: dict[str, mx.array]) -> Any:
    """mlx-lm's model with these weights."""
    from mlx_lm.models import qwen3_5

    args = qwen3_5.ModelArgs.from_dict(json.loads(json.dumps(tiny.CONFIG)))
    model = qwen3_5.Model(args)
    model.load_weights(list(model.sanitize(tensors).items()))
    mx.eval(model.parameters())
    return model


def test_every_wrong_name_is_listed() -> None:
    tensors = tiny.weights(0)
    del tensors["mtp.fc.weight"]
    tensors["mtp.fc.bias"] = tensors["sound.weight"] = mx.zeros((3,))
    tensors["lm_head.weight"] = mx.zeros((tiny.VOCAB, 7))
    with pytest.raises(ModelError) as caught:
        tiny.built(tiny.CONFIG, tensors)
    assert str(caught.value) == (
        "the weights in here do not fit the model; missing: mtp.fc.weight; unknown: mtp.fc.bias, sound.weight; "
        f"wrong shape: lm_head.weight: [{tiny.VOCAB}, 7] instead of [{tiny.VOCAB}, {tiny.HIDDEN}]"
    )


@pytest.mark.parametrize("name", tiny.shapes())
def test_every_name_is_needed(name: str) -> None:
    tensors = tiny.weights(0)
    del tensors[name]
    with pytest.raises(ModelError, match=rf"missing: {canonical(name)}$"):
        tiny.built(tiny.CONFIG, tensors)


def test_a_checkpoint_without_a_draft_head() -> None:
    config = tiny.CONFIG | {"text_config": tiny.CONFIG["text_config"] | {"mtp_num_hidden_layers": 0}}
    tensors = {name: tensor for name, tensor in tiny.weights(0).items() if not name.startswith("mtp.")}
    family, tokens = tiny.built(config, tensors), tiny.words(0, 40)
    assert family.spec.draft_layers == ()
    assert mx.array_equal(logits(family, read(family, tokens)), logits(tiny.family(), read(tiny.family(), tokens)))


@pytest.mark.parametrize(
    ("field", "named"), [("hidden_size", "hidden_size"), ("rope_parameters", "partial_rotary_factor"), ("linear_conv_kernel_dim",) * 2]
)
def test_a_missing_field_is_named(field: str, named: str) -> None:
    text = {name: value for name, value in tiny.CONFIG["text_config"].items() if name != field}
    with pytest.raises(ModelError, match=f"config.json lacks '{named}'"):
        Config.parse({"text_config": text})


@pytest.mark.parametrize("change", [{"attention_bias": True}, {"hidden_act": "gelu"}, {"attn_output_gate": False}], ids=str)
def test_what_is_not_supported_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="does not support"):
        Config.parse({"text_config": tiny.CONFIG["text_config"] | change})


def test_scaled_rotary_positions_are_refused() -> None:
    rope = tiny.CONFIG["text_config"]["rope_parameters"] | {"rope_type": "yarn", "factor": 4.0}
    with pytest.raises(ModelError, match="yarn"):
        Config.parse({"text_config": tiny.CONFIG["text_config"] | {"rope_parameters": rope}})
