"""A kernel that is wrong on this device is detected before a model is served, and so are rows that depend on each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from tests.talking import tokenizer

from forerun.config import Config
from forerun.engine.loading import load_model
from forerun.errors import UnsupportedError
from forerun.kernels import proof
from forerun.kernels.arithmetic import Arithmetic
from forerun.kernels.numerics import FAST
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
    for build in ("one", "one", "another", "one"):
        monkeypatch.setattr(proof.cpu, "build", lambda build=build: build)
        proof.prove_once()
    assert len(proved) == 2
    monkeypatch.setattr(proof, "version", lambda package: "0.99")
    proof.prove_once()
    assert len(proved) == 3


def test_a_proof_that_cannot_be_cached_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server must start although its cache folder is full or read-only."""
    monkeypatch.setattr(proof, "prove", lambda: {"attention": 0.0})
    (tmp_path / "forerun").write_text("")
    proof.prove_once()


def test_a_failed_proof_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "KERNELS", (proof.Kernel("attention", lambda device: [math.nan], 0.05),))
    for _ in range(2):
        with pytest.raises(UnsupportedError):
            proof.prove_once()


def test_kernels_are_right_here() -> None:
    errors = proof.prove()
    layers = {"DeltaNet layer", "inputs of attention", "attention over stored rows"}
    logits = {"log-softmax", "the largest values"}
    on_cpu = layers | logits | {"quantised products", "products", "products with GGUF blocks"}
    assert set(errors) == (on_cpu if proof.cpu.extension() else {"attention"}), "the others need CUDA, or no CPU kernels"
    assert max(errors.values()) < 1e-4


@pytest.mark.usefixtures("without_cpu_kernels")
@pytest.mark.parametrize("wrong", [lambda *a, **k: blind_beyond(8192, *a, **k), without_numbers], ids=["beyond 8,192", "not a number"])
def test_a_wrong_kernel_is_refused(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", wrong)
    settings = Config.model_validate({"bank_disk_bytes": 0})
    prompter = Prompter(tokenizer(), Template.load(DEMO_MODEL))
    with pytest.raises(UnsupportedError, match="the fast kernel of attention is wrong on this device"):
        load_model(settings, DEMO_MODEL, Arithmetic(FAST, "float32", "here"), prompter, lambda doing, frac: None)


class Product:
    """An array with products by the function `product`."""

    def __init__(self, array: mx.array, product: Callable[[mx.array, mx.array], mx.array]) -> None:
        self.array, self.product = array, product

    @property
    def T(self) -> Product:  # noqa: N802 - MLX's name
        return Product(self.array.T, self.product)

    def __getitem__(self, index: Any) -> Product:
        return Product(self.array[index], self.product)

    def __matmul__(self, other: Product) -> mx.array:
        return self.product(self.array, other.array)


@pytest.fixture
def multiply_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[mx.array, mx.array], mx.array]], None]:
    """Multiply the random matrices of the proof with this function."""

    def patch(product: Callable[[mx.array, mx.array], mx.array]) -> None:
        normal = mx.random.normal
        fake = SimpleNamespace(normal=lambda shape, key: Product(normal(shape, key=key), product), key=mx.random.key)
        monkeypatch.setattr(mx, "random", fake)

    return patch


def by_number_of_rows(a: mx.array, b: mx.array) -> mx.array:
    """Like a BLAS with a separate kernel for few rows: the same numbers, summed in another order."""
    return a @ b if a.shape[0] > 4 else (a[:, ::2] @ b[::2] + a[:, 1::2] @ b[1::2])


def test_rows_of_mlx_do_not_depend_on_each_other() -> None:
    """Where the CPU kernels are missing, `exact-arrays` rests on it."""
    proof.prove_row_invariant({(96, 64), (32, 33)})


def test_rows_that_depend_on_their_number_are_refused(multiply_by: Callable[..., None]) -> None:
    multiply_by(by_number_of_rows)
    with pytest.raises(UnsupportedError, match="MLX changes the bits of a row with the number of rows") as caught:
        proof.prove_row_invariant({(96, 64), (32, 33)})
    assert "compiler" in caught.value.hint


def test_rows_that_depend_on_their_position_are_refused(multiply_by: Callable[..., None]) -> None:
    multiply_by(lambda a, b: mx.concatenate([a[:512] @ b, by_number_of_rows(a[512:513], b), a[513:] @ b]))
    with pytest.raises(UnsupportedError, match="MLX changes the bits"):
        proof.prove_row_invariant({(96, 64), (32, 33)})


def test_a_large_vocabulary_is_tested_with_few_rows(multiply_by: Callable[..., None]) -> None:
    seen: list[int] = []
    multiply_by(lambda a, b: seen.append(a.shape[0]) or a @ b)
    proof.prove_row_invariant({(250_000, 4)})
    assert (min(seen), max(seen)) == (1, 268)
