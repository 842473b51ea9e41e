"""From a folder to a model: errors for missing, damaged or unsupported parts; the digest is of the weights alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import mlx.core as mx
import pytest
from tests import tiny
from tests.running import logits, read

from forerun.config import cache_home
from forerun.errors import ModelError
from forerun.kernels.numerics import EXACT
from forerun.models.digest import WeightsDigest, signature
from forerun.models.load import LoadedModel, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny model as a checkpoint in two files."""
    (tmp_path / "config.json").write_text(json.dumps(tiny.CONFIG))
    tensors = sorted(tiny.weights(0).items())
    mx.save_safetensors(str(tmp_path / "model-1.safetensors"), dict(tensors[:10]))
    mx.save_safetensors(str(tmp_path / "model-2.safetensors"), dict(tensors[10:]))
    return tmp_path


def loaded(folder: Path) -> LoadedModel:
    return load(folder, EXACT, "float32", lambda doing, done_frac: None)


def test_all_files_of_a_checkpoint_are_read(folder: Path) -> None:
    tokens, model = tiny.words(0, 20), loaded(folder)
    assert mx.array_equal(logits(model.family, read(model.family, tokens)), logits(tiny.family(), read(tiny.family(), tokens)))
    assert (model.mtp, model.family.vocab, model.family.context_tokens) == ("mtp1", tiny.VOCAB, 16384)


def test_progress_runs_from_0_to_1(folder: Path) -> None:
    progress: dict[str, list[float]] = {}
    load(folder, EXACT, "float32", lambda doing, done_frac: progress.setdefault(doing, []).append(done_frac))
    assert progress["reading weights"] == sorted(progress["reading weights"])
    assert progress["reading weights"][-1] == 1.0


def test_the_digest_is_of_the_weights(folder: Path) -> None:
    before = loaded(folder).digest
    (folder / "README.md").write_text("hello")
    assert loaded(folder).digest == before
    file = folder / "model-2.safetensors"
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    assert loaded(folder).digest != before


def test_weights_that_are_cut_off(folder: Path) -> None:
    file = folder / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"model-2\.safetensors cannot be read"):
        loaded(folder)


def test_no_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ModelError, match=r"no \.safetensors file"):
        loaded(folder)


@pytest.mark.parametrize(("text", "complaint"), [("{", "cannot be read"), ("[]", "is not a JSON object")])
def test_an_invalid_config(folder: Path, text: str, complaint: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=complaint):
        loaded(folder)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist") as caught:
        loaded(tmp_path / "nowhere")
    assert "config.json" in caught.value.hint


def test_another_family(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "rwkv"}))
    with pytest.raises(ModelError, match="model_type 'rwkv' is not supported") as caught:
        loaded(folder)
    assert "qwen3_5" in caught.value.hint


def test_the_digest_is_cached_while_the_files_are_unchanged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def age(seconds: int) -> None:
        for file in folder.iterdir():
            os.utime(file, (1_700_000_000 + seconds, 1_700_000_000 + seconds))

    age(0)
    digest = loaded(folder).digest
    monkeypatch.setattr(WeightsDigest, "add", lambda self, name, tensor: pytest.fail("digested again"))
    assert loaded(folder).digest == digest
    age(1)
    with pytest.raises(pytest.fail.Exception, match="digested again"):
        loaded(folder)


def test_the_digest_of_a_recently_written_file_is_not_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(folder)
    monkeypatch.setattr(WeightsDigest, "add", lambda self, name, tensor: pytest.fail("digested again"))
    with pytest.raises(pytest.fail.Exception, match="digested again"):
        loaded(folder)


def test_a_damaged_cached_digest_is_computed_again(folder: Path) -> None:
    for file in folder.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))
    digest = loaded(folder).digest
    kept = cache_home() / "digests" / signature([folder / "config.json", *sorted(folder.glob("*.safetensors"))])
    kept.write_text(kept.read_text()[:7])
    assert loaded(folder).digest == digest == kept.read_text()
