"""Converted models load here and in mlx-lm, with the same logits; the draft head is that of the source; memory stays at one shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests import checkpoints, families, tiny
from tests.families import VOCAB, loaded, mlx_lm_logits, tensors, write_hub, write_mlx
from tests.running import empty, step

from forerun.errors import ConfigError, ForerunError, ModelError
from forerun.kernels.quantised import Scheme
from forerun.models import convert as convert_module
from forerun.models.checkpoint import Folder
from forerun.models.convert import ConversionResult, convert, write
from forerun.models.recipe import PRESETS, Recipe

TOKENS = [token % VOCAB for token in tiny.words("convert", 24)]
FOUR = Recipe(Scheme("affine", 4, 32), (), (), False)
PLAIN = Recipe(Scheme("affine", 16, 32), (), (), False)


def silent(doing: str, done_frac: float) -> None:
    pass


@pytest.fixture(autouse=True)
def _not_compiled() -> Iterator[None]:
    """mlx-lm compiles parts of its models, which takes most of a minute on a new machine."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(params=sorted(families.CONFIGS))
def hub(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    kind = str(request.param)
    return write_hub(tmp_path / "hub", kind, {name: tensor.astype(mx.bfloat16) for name, tensor in tensors(kind).items()})


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_hub(tmp_path / "hub", "qwen3_5", tensors("qwen3_5"))


def made(hub: Path, recipe: Recipe, **limits: int) -> Path:
    convert(hub, hub.parent / "mlx", recipe, silent, **limits)
    return hub.parent / "mlx"


def our_logits(folder: Path) -> mx.array:
    family = loaded(folder).family
    return step(family, empty(family), TOKENS)


def difference(one: mx.array, other: mx.array) -> float:
    assert float(mx.abs(one).max()) > 1  # there is something to compare
    return float(mx.abs(one.astype(mx.float32) - other.astype(mx.float32)).max())


def stored(folder: Path) -> dict[str, mx.array]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in mx.load(str(file)).items()}


def in_float32(folder: Path) -> Path:
    """The folder with its plain tensors in float32, so that mlx-lm computes as we do."""
    for file in folder.glob("model*.safetensors"):
        named = {name: t.astype(mx.float32) if t.dtype == mx.bfloat16 else mx.array(t) for name, t in mx.load(str(file)).items()}
        mx.eval(named)
        mx.save_safetensors(str(file), named)
    return folder


@pytest.mark.parametrize("recipe", [FOUR, PLAIN], ids=["4-bit", "plain"])
def test_mlx_lm_computes_the_same(hub: Path, recipe: Recipe) -> None:
    folder = made(hub, recipe, shard_bytes=100_000)
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    ours = our_logits(folder)
    assert difference(ours, mlx_lm_logits(in_float32(folder), TOKENS)) < 2e-4


def test_the_same_tensors_as_mlx_lm(hub: Path, tmp_path: Path) -> None:
    theirs = stored(write_mlx(tmp_path / "theirs", hub, group_size=32, bits=4, quant_predicate=plain_routers))
    ours = {name: tensor for name, tensor in stored(made(hub, FOUR)).items() if not name.startswith("mtp.")}
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not mx.array_equal(ours[name], theirs[name].astype(ours[name].dtype))] == []


def plain_routers(path: str, module: Any) -> bool:
    return not path.endswith(("mlp.gate", "shared_expert_gate"))


def test_the_mix_of_the_original_report(dense: Path) -> None:
    preset = PRESETS["optimized-speed"](json.loads((dense / "config.json").read_text()))
    folder = made(dense, Recipe(Scheme("affine", 4, 32), preset, (), False))
    declared = json.loads((folder / "config.json").read_text())["quantization"]
    assert declared["bits"] == 4
    assert declared["language_model.lm_head"] == {"group_size": 32, "bits": 8, "mode": "affine"}
    assert "language_model.model.layers.1.self_attn.q_proj" not in declared
    assert difference(our_logits(folder), mlx_lm_logits(in_float32(folder), TOKENS)) < 2e-4


def test_the_draft_head_is_that_of_the_source(dense: Path) -> None:
    folder = made(dense, FOUR)
    source, head = tensors("qwen3_5"), mx.load(str(folder / "mtp.safetensors"))
    assert head.keys() == {name for name in source if name.startswith("mtp.")}
    assert all(mx.array_equal(tensor, source[name]) for name, tensor in head.items())
    assert {"norms of the target: folded (declared)", "norms of the MTP head: zero-centred (declared)"} <= set(loaded(folder).notes)


def test_a_draft_head_that_is_quantised_by_force(dense: Path) -> None:
    folder = made(dense, Recipe(Scheme("affine", 8, 32), (), (), True))
    assert "mtp.fc.scales" in mx.load(str(folder / "mtp.safetensors"))
    assert loaded(folder).mtp == "mtp1"


def test_converted_again(dense: Path) -> None:
    plain = made(dense, PLAIN)
    convert(plain, dense.parent / "again", FOUR, silent)
    convert(dense, dense.parent / "at-once", FOUR, silent)
    again, at_once = stored(dense.parent / "again"), stored(dense.parent / "at-once")
    assert all(mx.array_equal(again[name], at_once[name]) for name in at_once | again)
    with pytest.raises(ModelError, match="is quantised already"):
        convert(dense.parent / "again", dense.parent / "twice", FOUR, silent)


def test_memory_is_that_of_a_shard(tmp_path: Path) -> None:
    config = checkpoints.dense(512, 8, 4096, 2, 2, 16)
    config["text_config"]["vocab_size"] = 16384
    source = checkpoints.write(tmp_path / "source", config, checkpoints.tensors(config))
    (tmp_path / "new").mkdir()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    written = write(Folder.find(source.parent).open(), tmp_path / "new", FOUR, silent, shard_bytes=4 << 20)
    peak_bytes, largest_bytes = mx.get_peak_memory() - before, 16384 * 512 * 2
    assert source.stat().st_size > 10 * largest_bytes
    assert peak_bytes < (4 << 20) + 2.5 * largest_bytes
    assert len(set(written.files.values())) > 10


def test_a_failed_conversion_leaves_nothing(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_module, "load", lambda *_: (_ for _ in ()).throw(ModelError("does not load")))
    with pytest.raises(ModelError, match="does not load"):
        convert(dense, dense.parent / "mlx", FOUR, silent)
    assert [path.name for path in dense.parent.iterdir()] == ["hub"]


def test_checks_before_anything_is_written(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ForerunError, match="exists"):
        convert(dense, dense, FOUR, silent)
    with pytest.raises(ConfigError, match="no matrix of this model matches"):
        convert(dense, dense.parent / "mlx", Recipe(FOUR.default, (), (("*.nothing", 8),), False), silent)
    monkeypatch.setattr(convert_module, "free_bytes", lambda path: 1000)
    with pytest.raises(ForerunError, match=r"would take 0\.0 GB"):
        convert(dense, dense.parent / "mlx", FOUR, silent)
    assert [path.name for path in dense.parent.iterdir()] == ["hub"]


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    named = tensors("qwen3_5")
    named["lm_head.weight"] = named["lm_head.weight"] * float("nan")
    with pytest.raises(ModelError, match=r"lm_head\.weight has values that are not finite"):
        convert(write_hub(tmp_path / "hub", "qwen3_5", named), tmp_path / "mlx", FOUR, silent)


def test_text_files_are_copied(dense: Path) -> None:
    (dense / "tokenizer.json").write_text("{}")
    (dense / "chat_template.jinja").write_text("{{ messages }}")
    folder = made(dense, FOUR)
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {"model-00001-of-00001.safetensors"}


def test_the_result_names_what_was_written(dense: Path, tmp_path: Path) -> None:
    written = convert(dense, tmp_path / "mlx", FOUR, silent)
    assert isinstance(written, ConversionResult)
    assert written.num_params == sum(tensor.size for tensor in tensors("qwen3_5").values())
    assert written.num_bytes == sum(tensor.nbytes for tensor in stored(tmp_path / "mlx").values())
