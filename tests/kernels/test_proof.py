"""A fast kernel that is wrong on this device is detected before a model is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests.talking import tokenizer

from forerun.config import Config
from forerun.engine.loading import load_model
from forerun.errors import UnsupportedError
from forerun.kernels import proof
from forerun.kernels.arithmetic import Arithmetic
from forerun.models.load import DEMO_MODEL
from forerun.text.prompt import Prompter
from forerun.text.template import Template

RIGHT = mx.fast.scaled_dot_product_attention


def blind_beyond(most: int, q: mx.array, keys: mx.array, values: mx.array, *, mask: mx.array, scale: float) -> mx.array:
    """Attention that ignores keys beyond the first `most`, as on some GPUs."""
    return RIGHT(q, keys[:, :, :most], values[:, :, :most], mask=mask[..., :most], scale=scale)


def without_numbers(q: mx.array, keys: mx.array, values: mx.array, **other: Any) -> mx.array:
    return RIGHT(q, keys, values, **other) * mx.nan


@pytest.fixture(autouse=True)
def _nothing_proved_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_proof_is_cached_for_its_kernels_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each start would otherwise compile kernels for most of a minute."""
    proved: list[str] = []
    monkeypatch.setattr(proof, "prove", lambda: proved.append("") or {"attention": 0.0})
    for blas in ("one", "one", "another", "one"):
        proof.prove_once(blas)
    assert len(proved) == 2
    monkeypatch.setattr(proof, "version", lambda package: "0.99")
    proof.prove_once("one")
    assert len(proved) == 3


def test_a_proof_that_cannot_be_cached_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server must start although its cache folder is full or read-only."""
    monkeypatch.setattr(proof, "prove", lambda: {"attention": 0.0})
    (tmp_path / "forerun").write_text("")
    proof.prove_once("one")


def test_a_failed_proof_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", without_numbers)
    for _ in range(2):
        with pytest.raises(UnsupportedError):
            proof.prove_once("here")


def test_kernels_are_right_here() -> None:
    errors = proof.prove()
    assert set(errors) == {"attention"}, "the others need CUDA"
    assert errors["attention"] < 1e-4


@pytest.mark.parametrize("wrong", [lambda *a, **k: blind_beyond(8192, *a, **k), without_numbers], ids=["beyond 8,192", "not a number"])
def test_a_wrong_kernel_is_refused(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", wrong)
    settings = Config.model_validate({"bank_disk_bytes": 0})
    prompter = Prompter(tokenizer(), Template.load(DEMO_MODEL))
    with pytest.raises(UnsupportedError, match="the fast kernel of attention is wrong on this device"):
        load_model(settings, DEMO_MODEL, Arithmetic(False, "here"), prompter, lambda doing, frac: None)
