"""A Llama in a GGUF file equals that of the hub's folder; unreadable files are reported."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from tests import families, gguf, tiny
from tests.families import VOCAB, loaded
from tests.running import empty, step

from forerun.errors import ModelError, UnsupportedError
from forerun.models.gguf import GgufFile

TOKENS = [token % VOCAB for token in tiny.words("gguf", 40)]


def logits(path: Path) -> mx.array:
    family = loaded(path).family
    return step(family, empty(family), TOKENS)


def test_the_same_model_as_in_a_folder(tmp_path: Path) -> None:
    hub = families.write_hub(tmp_path / "hub", "llama", families.tensors("llama"))
    assert float(mx.abs(logits(gguf.write(tmp_path / "small.gguf")) - logits(hub)).max()) < 1e-4


def test_factors_of_long_contexts(tmp_path: Path) -> None:
    file, factors = gguf.write(tmp_path / "small.gguf"), mx.linspace(1.0, 8.0, families.DIM // 2)
    tensors, metadata = mx.load(str(file), return_metadata=True)
    mx.save_gguf(str(tmp_path / "long.gguf"), {**tensors, "rope_freqs.weight": factors}, metadata)
    assert float(mx.abs(logits(tmp_path / "long.gguf") - logits(file)).max()) > 1e-2
    periods = loaded(tmp_path / "long.gguf").family.config.rope.periods
    assert mx.allclose(periods, loaded_periods() * factors)


def loaded_periods() -> mx.array:
    return mx.power(10000.0, mx.arange(0, families.DIM, 2, dtype=mx.float32) / families.DIM)


def test_another_architecture(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="architecture 'mamba' cannot be read"):
        GgufFile.find(gguf.write(tmp_path / "other.gguf", general__architecture="mamba"))


def test_unsupported_rope_scaling(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="rope_type 'yarn' is not supported"):
        loaded(gguf.write(tmp_path / "other.gguf", llama__rope__scaling__type="yarn"))


def test_tensors_that_are_cut_off(tmp_path: Path) -> None:
    file = gguf.write(tmp_path / "small.gguf")
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"small\.gguf cannot be read"):
        loaded(file)
