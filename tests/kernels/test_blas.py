"""The BLAS is named and tested: wrong products, or rows that depend on each other, are refused with a hint."""

from __future__ import annotations

import platform
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from forerun.errors import UnsupportedError
from forerun.kernels import blas

SHAPES = {(96, 64), (32, 33)}


class Product:
    """An array with products by the function `product`."""

    def __init__(self, array: mx.array, product: Callable[[mx.array, mx.array], mx.array]) -> None:
        self.array, self.product = array, product

    @property
    def T(self) -> Product:  # noqa: N802 - MLX's name
        return Product(self.array.T, self.product)

    def __getitem__(self, index: Any) -> Product:
        return Product(self.array[index], self.product)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype=dtype)

    def __matmul__(self, other: Product) -> mx.array:
        return self.product(self.array, other.array)


@pytest.fixture
def multiply_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[mx.array, mx.array], mx.array]], None]:
    """Multiply the random matrices of the proofs with this function."""

    def patch(product: Callable[[mx.array, mx.array], mx.array]) -> None:
        normal = mx.random.normal
        fake = SimpleNamespace(normal=lambda shape, key: Product(normal(shape, key=key), product), key=mx.random.key)
        monkeypatch.setattr(mx, "random", fake)

    return patch


def by_number_of_rows(a: mx.array, b: mx.array) -> mx.array:
    """Like a BLAS with a separate kernel for few rows: the same numbers, summed in another order."""
    return a @ b if a.shape[0] > 4 else (a[:, ::2] @ b[::2] + a[:, 1::2] @ b[1::2])


def test_the_blas_of_these_tests_passes() -> None:
    blas.prove_correct("this one")
    blas.prove_row_invariant("this one", SHAPES)


def test_correct_products_pass(multiply_by: Callable[..., None]) -> None:
    multiply_by(lambda a, b: a @ b)
    blas.prove_correct("honest")
    blas.prove_row_invariant("honest", SHAPES)


def test_rows_that_depend_on_each_other_are_refused(multiply_by: Callable[..., None]) -> None:
    multiply_by(by_number_of_rows)
    blas.prove_correct("hasty")
    with pytest.raises(UnsupportedError, match="hasty changes the bits of a row") as caught:
        blas.prove_row_invariant("hasty", SHAPES)
    assert "--numerics fast" in caught.value.hint


def test_a_large_vocabulary_is_tested_with_few_rows(multiply_by: Callable[..., None]) -> None:
    seen: list[int] = []
    multiply_by(lambda a, b: seen.append(a.shape[0]) or a @ b)
    blas.prove_row_invariant("honest", {(250_000, 4)})
    assert (min(seen), max(seen)) == (1, 268)


def test_rows_that_depend_on_their_position_are_refused(multiply_by: Callable[..., None]) -> None:
    multiply_by(lambda a, b: mx.concatenate([a[:512] @ b, by_number_of_rows(a[512:513], b), a[513:] @ b]))
    with pytest.raises(UnsupportedError, match="hasty"):
        blas.prove_row_invariant("hasty", SHAPES)


@pytest.mark.parametrize("wrong", [lambda a, b: (a @ b) * 1.001, lambda a, b: (a @ b) * mx.nan], ids=["inexact", "not a number"])
def test_wrong_products_are_refused(multiply_by: Callable[..., None], wrong: Callable[[mx.array, mx.array], mx.array]) -> None:
    multiply_by(wrong)
    with pytest.raises(UnsupportedError, match="liar computes wrong products") as caught:
        blas.prove_correct("liar")
    assert "wheel" in caught.value.hint


def test_a_blas_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(blas, "_CANDIDATES", ("/nowhere/{machine}/libopenblas.so.0",))
    with pytest.raises(UnsupportedError, match="no OpenBLAS") as caught:
        blas.load("openblas", row_invariant=True)
    assert "libopenblas0-pthread" in caught.value.hint
    assert "slow" in blas.load("auto", row_invariant=True)


@pytest.mark.skipif(platform.system() != "Linux" or blas.find() is None, reason="needs an OpenBLAS")
def test_loading_after_mlx_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"before mlx\.core is imported"):
        blas.load("openblas", row_invariant=True)
