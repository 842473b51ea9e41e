"""Modules and cost of a checkpoint, against the published sizes of the family; the files have no weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests import checkpoints, families, gguf

from forerun.errors import ModelError
from forerun.kernels import cpu
from forerun.models import load
from forerun.models.fit import Machine, MemoryFit, fit, weights_in_memory
from forerun.models.inspect import Checkpoint, read_checkpoint

MAC = Machine(memory_bytes=64 << 30, bank_ram_bytes=2 << 30, bank_bytes=20 << 30, is_cpu=False, has_cpu_kernels=False)
CPU = Machine(memory_bytes=16 << 30, bank_ram_bytes=0, bank_bytes=0, is_cpu=True, has_cpu_kernels=False)
SMALL = checkpoints.dense(1024, 24, 3584, 8, 2, 16, tied=True)
LARGE = checkpoints.dense(5120, 64, 17408, 24, 4, 48)
MIB = 1 << 20


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("small")
    checkpoints.write(folder, SMALL, checkpoints.tensors(SMALL))
    return read_checkpoint(folder)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """4-bit, with a plain MTP head in its own file."""
    folder = tmp_path_factory.mktemp("large")
    config = LARGE | {"quantization": {"group_size": 64, "bits": 4, "lm_head": {"group_size": 32, "bits": 8}}}
    found = checkpoints.tensors(LARGE)
    target = {name: tensor for name, tensor in found.items() if not name.startswith(("mtp.", "lm_head"))}
    packed = checkpoints.quantised(target, 4, 64) | checkpoints.quantised({"lm_head.weight": found["lm_head.weight"]}, 8, 32)
    checkpoints.write(folder, config, packed)
    checkpoints.write(folder, config, {name: tensor for name, tensor in found.items() if name.startswith("mtp.")}, "mtp.safetensors")
    return read_checkpoint(folder)


def slow(found: MemoryFit) -> str:
    return "\n".join(found.slow)


def test_the_published_sizes_of_0_8b(small: Checkpoint) -> None:
    assert small.num_active_params == pytest.approx(0.75e9, rel=0.01)
    assert small.mtp == "among the weights, BF16"
    found = fit(small, MAC)
    assert found.bytes_per_1000_tokens == 1000 * (12 + 2) * 1024
    assert found.bytes_per_snapshot == pytest.approx(18.6 * MIB, rel=0.01)
    assert found.memory_tokens == found.declared_tokens == 262144


def test_the_published_sizes_of_27b(large: Checkpoint) -> None:
    assert large.num_active_params == pytest.approx(26.9e9, rel=0.01)
    assert large.mtp == "in mtp.safetensors, BF16"
    found = fit(large, MAC)
    assert found.bytes_per_1000_tokens == 1000 * (64 + 4) * 1024
    assert found.bytes_per_snapshot == pytest.approx((144 + 2.8) * MIB, rel=0.01)
    assert found.bank_tokens == (20 << 30) // (68 * 1024)


def test_kinds_and_how_they_are_stored(large: Checkpoint) -> None:
    kinds = {kind.name: kind for kind in large.kinds()}
    assert kinds["mlp"].formats == {"4-bit affine, groups of 64": 64 * 3 * 5120 * 17408}
    assert kinds["head"].formats == {"8-bit affine, groups of 32": 248320 * 5120}
    assert (kinds["mtp"].num_modules, list(kinds["mtp"].formats)) == (15, ["BF16"])
    assert kinds["delta net out"].num_modules == 48
    assert set(kinds["other"].formats) == {"BF16", "F32"}


def test_the_vision_tower_is_listed_and_not_counted(small: Checkpoint) -> None:
    assert [kind.name for kind in small.kinds()][-1] == "not read"
    assert small.num_params == sum(kind.num_params for kind in small.kinds()) - 64 * 64


def test_a_context_that_does_not_fit(large: Checkpoint) -> None:
    found = fit(large, replace(MAC, memory_bytes=24 << 30))
    assert 0 < found.memory_tokens < 60_000
    assert found.memory_tokens == ((24 << 30) * 3 // 4 - (2 << 30) - large.num_bytes - found.bytes_per_snapshot) // (68 * 1024)


def test_weights_that_do_not_fit(large: Checkpoint) -> None:
    found = fit(large, replace(MAC, memory_bytes=16 << 30))
    assert found.memory_tokens == 0
    assert "it will swap, or not start" in slow(found)


def test_on_a_cpu_weights_are_float32_if_they_fit(small: Checkpoint, large: Checkpoint) -> None:
    assert weights_in_memory(small, CPU) == 4 * small.num_params
    assert weights_in_memory(large, CPU) < 4 * large.num_params
    assert "quantised weights slowly on a CPU" in slow(fit(large, CPU))
    assert fit(small, CPU).bytes_per_1000_tokens == 2 * fit(small, MAC).bytes_per_1000_tokens


def test_cpu_kernels_take_weights_as_stored(small: Checkpoint, large: Checkpoint) -> None:
    machine = replace(CPU, has_cpu_kernels=True)
    assert weights_in_memory(small, machine) == small.num_bytes
    assert weights_in_memory(large, machine) == large.num_bytes < weights_in_memory(large, CPU)
    assert "slowly" not in slow(fit(large, machine))


def test_without_a_draft_head(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, SMALL, checkpoints.tensors(SMALL, mtp=False))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.mtp == "none"
    assert "nothing is drafted" in slow(fit(checkpoint, MAC))
    assert fit(checkpoint, MAC).bytes_per_1000_tokens == 1000 * 12 * 1024


def test_a_quantised_draft_head(tmp_path: Path) -> None:
    mtp = {name.replace("mtp.", "language_model.mtp.", 1): t for name, t in checkpoints.tensors(SMALL).items() if name.startswith("mtp.")}
    config = SMALL | {"quantization": {"group_size": 64, "bits": 4}}
    checkpoints.write(tmp_path, config, checkpoints.quantised(mtp | checkpoints.tensors(SMALL, mtp=False), 4, 64))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.mtp == "among the weights, 4-bit affine, groups of 64"
    assert "accepted less often" in slow(fit(checkpoint, MAC))


def test_heads_without_a_fast_kernel(tmp_path: Path) -> None:
    config = SMALL | {"text_config": SMALL["text_config"] | {"linear_key_head_dim": 96}}
    checkpoints.write(tmp_path, config, checkpoints.tensors(config))
    assert "not of 96" in slow(fit(read_checkpoint(tmp_path), MAC))
    assert "not of 96" not in slow(fit(read_checkpoint(tmp_path), CPU))


def test_experts_that_are_not_chosen_are_not_active(tmp_path: Path) -> None:
    text = SMALL["text_config"] | {"num_experts": 8, "num_experts_per_tok": 2}
    experts: checkpoints.Shapes = {"model.language_model.layers.0.mlp.experts.gate_up_proj": ("BF16", (8, 64, 1024))}
    checkpoints.write(tmp_path, SMALL | {"text_config": text}, checkpoints.tensors(SMALL, mtp=False) | experts)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.num_params - checkpoint.num_active_params == 6 * 64 * 1024


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, SMALL, checkpoints.tensors(SMALL), "model-00001-of-00002.safetensors")
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(ModelError, match=r"lacks files that .*: model-00002-of-00002"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("kind", sorted(families.CONFIGS))
def test_it_agrees_with_the_loaded_model(tmp_path: Path, kind: str) -> None:
    folder = families.write_hub(tmp_path, kind, families.tensors(kind))
    checkpoint, family = read_checkpoint(folder), families.loaded(folder).family
    found = fit(checkpoint, CPU)
    assert (found.bytes_per_1000_tokens, found.bytes_per_snapshot) == (1000 * family.spec.bytes_per_token, family.spec.bytes_per_snapshot)
    assert checkpoint.num_params == sum(tensor.size for tensor in families.tensors(kind).values())
    assert [module.name for module in checkpoint.modules if module.kind == "other" and module.num_params >= 128 * 128] == []


def test_a_gguf_file_agrees_with_the_loaded_model(tmp_path: Path) -> None:
    tensors = gguf.llama(ffn="q4_k", attn="q5_1", token="q8_0")
    checkpoint = read_checkpoint(gguf.save(tmp_path / "small.gguf", tensors, {}).parent)
    spec = families.loaded(checkpoint.path).family.spec
    assert fit(checkpoint, CPU).bytes_per_1000_tokens == 1000 * spec.bytes_per_token
    assert checkpoint.num_params == sum(tensor.size for tensor in families.tensors("llama").values())
    assert checkpoint.num_bytes == sum(len(stored.data) for stored in tensors.values())
    formats = {kind.name: set(kind.formats) for kind in checkpoint.kinds()}
    assert formats == {"embedding": {"Q8_0"}, "attention": {"Q5_1"}, "mlp": {"Q4_K", "Q8_0"}, "other": {"F32"}}


@pytest.mark.parametrize("memory_bytes", [1, 16 << 30], ids=["packed", "dense"])
@pytest.mark.parametrize("has_kernels", [False, True])
def test_memory_for_a_gguf_file(tmp_path: Path, request: pytest.FixtureRequest, *, has_kernels: bool, memory_bytes: int) -> None:
    """Of its matrices; the loaded ones are weighed."""
    if not has_kernels:
        request.getfixturevalue("without_cpu_kernels")
    elif cpu.extension() is None:
        pytest.skip("the CPU kernels are not built")
    request.getfixturevalue("monkeypatch").setattr(load, "dense_limit_bytes", lambda: memory_bytes // 2)
    checkpoint = read_checkpoint(gguf.save(tmp_path / "small.gguf", gguf.llama(ffn="q4_k", attn="q4_1", token="q8_0"), {}))
    family = families.loaded(checkpoint.path).family
    held = [family._embedding] + [m for layer in family._layers for m in (layer.qkv, layer.out, layer.mlp.gate_up, layer.mlp.down)]
    norms = 4 * sum(module.num_params for module in checkpoint.modules if module.kind == "other")
    machine = replace(CPU, memory_bytes=memory_bytes, has_cpu_kernels=has_kernels)
    assert weights_in_memory(checkpoint, machine) == norms + sum(array.nbytes for matrix in held for array in matrix.arrays())


def test_a_head_that_is_the_embedding_is_counted_once(tmp_path: Path) -> None:
    head = {"lm_head.weight": ("BF16", (248320, 1024))}
    checkpoints.write(tmp_path, SMALL, checkpoints.tensors(SMALL) | head)
    assert read_checkpoint(tmp_path).num_active_params == pytest.approx(0.75e9, rel=0.01)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no model"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5"}')
    with pytest.raises(ModelError, match=r"has no \.safetensors"):
        read_checkpoint(tmp_path)


def test_quantised_without_a_declaration(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, SMALL, checkpoints.quantised(checkpoints.tensors(SMALL), 4, 64))
    with pytest.raises(ModelError, match="does not declare how"):
        read_checkpoint(tmp_path)
