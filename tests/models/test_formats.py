"""Hub and MLX folders, each quantisation mode, the MTP head inside or in its own file: the same logits as mlx-lm's.

Damaged or wrongly declared tensors are refused by name.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests import families, tiny
from tests.families import VOCAB, loaded, mlx_lm_logits, tensors, write_hub, write_mlx
from tests.running import empty, step

from forerun.errors import ModelError, UnsupportedError
from forerun.kernels import cpu
from forerun.models import load as load_module

TOKENS = [token % VOCAB for token in tiny.words("formats", 24)]
AFFINE = [(bits, group) for bits, group in ((2, 32), (3, 64), (4, 32), (4, 64), (4, 128), (5, 32), (6, 64), (8, 32), (8, 128))]
WAYS: dict[str, dict[str, Any]] = {f"affine {b} {g}": {"bits": b, "group_size": g, "mode": "affine"} for b, g in AFFINE} | {
    "mxfp4": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    "mxfp8": {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    "nvfp4": {"bits": 4, "group_size": 16, "mode": "nvfp4"},
}


@pytest.fixture(autouse=True)
def _not_compiled() -> Iterator[None]:
    """mlx-lm compiles parts of its models, which takes most of a minute on a new machine."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(params=sorted(families.CONFIGS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hub(tmp_path: Path, kind: str) -> Path:
    return write_hub(tmp_path / "hub", kind, tensors(kind))


def our_logits(folder: Path) -> mx.array:
    family = loaded(folder).family
    return step(family, empty(family), TOKENS)


def difference(one: mx.array, other: mx.array) -> float:
    assert float(mx.abs(one).max()) > 1  # there is something to compare
    return float(mx.abs(one - other).max())


def mixed(path: str, module: Any) -> bool | dict[str, Any]:
    """Typical overrides: some modules with more bits, one plain, so that stacked projections have different schemes."""
    if path.endswith("k_proj"):
        return {"group_size": 32, "bits": 8}
    return not path.endswith(("up_proj", "embed_tokens"))


def test_a_hub_folder(hub: Path) -> None:
    assert difference(our_logits(hub), mlx_lm_logits(hub, TOKENS)) < 1e-4


def test_an_mlx_folder(tmp_path: Path, hub: Path) -> None:
    mlx = write_mlx(tmp_path / "mlx", hub)
    assert difference(our_logits(mlx), mlx_lm_logits(mlx, TOKENS)) < 1e-4
    assert difference(our_logits(mlx), our_logits(hub)) < 1e-5


@pytest.mark.parametrize("variant", WAYS)
def test_quantised(tmp_path: Path, variant: str) -> None:
    mlx = write_mlx(tmp_path / "mlx", write_hub(tmp_path / "hub", "qwen3_5", tensors("qwen3_5")), **WAYS[variant])
    assert difference(our_logits(mlx), mlx_lm_logits(mlx, TOKENS)) < 2e-4


def test_quantised_with_overrides(tmp_path: Path, hub: Path) -> None:
    mlx = write_mlx(tmp_path / "mlx", hub, bits=4, group_size=64, quant_predicate=mixed)
    assert difference(our_logits(mlx), mlx_lm_logits(mlx, TOKENS)) < 2e-4


@pytest.mark.parametrize("predicate", [None, mixed])
def test_quantised_matrices_that_are_not_dequantised(
    tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch, predicate: Callable[..., Any] | None
) -> None:
    mlx = write_mlx(tmp_path / "mlx", hub, bits=4, group_size=32, quant_predicate=predicate)
    dense = our_logits(mlx)
    how = "used as they are: " if cpu.extension() else "dequantised to float32: "
    assert any(how in note for note in loaded(mlx).notes)
    monkeypatch.setattr(load_module, "dense_limit_bytes", lambda: 0)
    assert any("used as they are" in note for note in loaded(mlx).notes)
    assert difference(our_logits(mlx), dense) < 2e-4


def with_head(folder: Path, kind: str, is_separate: bool, *, is_folded: bool) -> Path:
    """The folder with the MTP head of the hub's checkpoint, in a file of the model or in its own file."""
    head = {name: tensor for name, tensor in tensors(kind).items() if name.startswith("mtp.")}
    if is_folded:
        head = {name: tensor + 1.0 if name.endswith("norm.weight") or "norm_" in name else tensor for name, tensor in head.items()}
    if is_separate:
        mx.save_safetensors(str(folder / "mtp.safetensors"), head)
        return folder
    file = folder / "model.safetensors"
    whole = {name: mx.array(tensor) for name, tensor in mx.load(str(file)).items()}
    mx.eval(whole)
    mx.save_safetensors(str(file), whole | {f"language_model.{name}": tensor for name, tensor in head.items()})
    return folder


@pytest.mark.parametrize("kind", [kind for kind in families.CONFIGS if kind != "llama"])
@pytest.mark.parametrize("is_folded", [True, False], ids=["folded", "zero-centred"])
@pytest.mark.parametrize("is_separate", [True, False], ids=["own file", "inside"])
def test_the_head_of_an_mlx_folder(tmp_path: Path, kind: str, hub: Path, is_separate: bool, is_folded: bool) -> None:
    mlx = with_head(write_mlx(tmp_path / "mlx", hub), kind, is_separate, is_folded=is_folded)
    ours, same = loaded(hub).family, loaded(mlx)
    assert same.mtp == "mtp1"
    assert difference(drafted(same.family), drafted(ours)) < 1e-5
    assert any(note.startswith(f"norms of the MTP head: {'folded' if is_folded else 'zero-centred'}") for note in same.notes)


def drafted(family: Any) -> mx.array:
    """Logits of the draft head at every token."""
    from forerun.state.cache import lend

    cache, ids = empty(family), mx.array(TOKENS, dtype=mx.int32)
    with lend([cache], family.numerics) as view:
        hidden = family.forward(ids, [len(TOKENS)], view)
        view.keep([len(TOKENS)], hidden)
        return family.head(family.draft(hidden[:-1], ids[1:], [len(TOKENS) - 1], view))


# Faults are reported.


def edit(folder: Path, change: Callable[[dict[str, mx.array]], None]) -> None:
    file = folder / "model.safetensors"
    named = {name: mx.array(tensor) for name, tensor in mx.load(str(file)).items()}
    mx.eval(named)
    change(named)
    mx.save_safetensors(str(file), named)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    hub = write_hub(tmp_path / "hub", "qwen3_5", tensors("qwen3_5"))
    return write_mlx(tmp_path / "mlx", hub, bits=4, group_size=32, quant_predicate=mixed)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(folder)
    return str(caught.value)


def test_scales_that_are_missing(packed: Path) -> None:
    edit(packed, lambda named: named.pop("language_model.model.layers.1.self_attn.o_proj.scales"))
    assert "wrong shape: model.layers.1.self_attn.o_proj.weight: [128, 16] instead of [128, 128]" in refusal(packed)


def test_matrices_that_are_packed_otherwise_than_declared(packed: Path) -> None:
    config = json.loads((packed / "config.json").read_text())
    config["quantization"]["language_model.model.layers.1.self_attn.k_proj"]["bits"] = 4
    (packed / "config.json").write_text(json.dumps(config))
    assert "packed wrongly: model.layers.1.self_attn.k_proj: 8 bit affine, groups of 32, declared" in refusal(packed)


def test_matrices_with_unknown_packing(packed: Path) -> None:
    name = "language_model.model.layers.0.mlp.down_proj.scales"
    edit(packed, lambda named: named.update({name: named[name][:, :3]}))
    assert "packed wrongly: model.layers.0.mlp.down_proj: [128, 32] with scales [128, 3] for [128, 256]" in refusal(packed)


def test_part_of_a_draft_head(tmp_path: Path) -> None:
    named = tensors("qwen3_5")
    del named["mtp.fc.weight"], named["mtp.layers.0.mlp.up_proj.weight"]
    folder = write_hub(tmp_path / "hub", "qwen3_5", named)
    assert "missing: mtp.fc.weight, mtp.layers.0.mlp.up_proj.weight" in refusal(folder)


def test_a_draft_head_with_ambiguous_norms(tmp_path: Path) -> None:
    mlx = write_mlx(tmp_path / "mlx", write_hub(tmp_path / "hub", "qwen3_5", tensors("qwen3_5")))
    with_head(mlx, "qwen3_5", is_separate=False, is_folded=False)
    edit(mlx, lambda named: named.update({"language_model.mtp.layers.0.self_attn.q_norm.weight": mx.full((families.DIM,), 1.4)}))
    assert "neither clearly gains nor differences from 1" in refusal(mlx)
    config = json.loads((mlx / "config.json").read_text())
    (mlx / "config.json").write_text(json.dumps(config | {"forerun_norms": {"target": "folded", "mtp": "zero-centred"}}))
    assert {"norms of the target: folded (declared)", "norms of the MTP head: zero-centred (declared)"} <= set(loaded(mlx).notes)


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "hub", "qwen3_5", tensors("qwen3_5"), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "lacks files that model.safetensors.index.json names: model-00002-of-00003.safetensors" in refusal(folder)


def test_the_same_tensor_twice(tmp_path: Path) -> None:
    named = tensors("qwen3_5")
    named["language_model.model.norm.weight"] = named["model.language_model.norm.weight"]
    assert "two tensors are model.norm.weight" in refusal(write_hub(tmp_path / "hub", "qwen3_5", named))


def test_weights_of_other_quantisers(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "hub", "qwen3_5", tensors("qwen3_5"))
    config = families.QWEN3_5 | {"quantization_config": {"quant_method": "awq"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="weights quantised by awq cannot be read"):
        loaded(folder)


def test_unread_tensors_are_noted(tmp_path: Path) -> None:
    named = tensors("qwen3_5") | {f"model.visual.blocks.{i}.weight": mx.zeros((3,)) for i in range(4)}
    folder = write_hub(tmp_path / "hub", "qwen3_5", named)
    (folder / "config.json").write_text(json.dumps(families.QWEN3_5 | {"tie_word_embeddings": True}))
    text = {name: value for name, value in families.QWEN3_5["text_config"].items() if name != "tie_word_embeddings"}
    (folder / "config.json").write_text(json.dumps(families.QWEN3_5 | {"text_config": text, "tie_word_embeddings": True}))
    notes = loaded(folder).notes
    assert "not read: 4 tensors model.visual.*" in notes
    assert "not read: lm_head.weight (the head is the embedding)" in notes
    assert "norms of the target: zero-centred (conv1d as on the hub)" in notes


def test_no_second_copy_of_the_weights(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "hub", "qwen3_5", {name: t.astype(mx.bfloat16) for name, t in tensors("qwen3_5").items()})
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    family = loaded(folder).family
    grown, most = mx.get_active_memory() - before, mx.get_peak_memory() - before
    largest = 4 * max(out * inner for out, inner in family.linear_shapes)
    assert most < grown + 2 * largest < 1.5 * grown
