"""Whether the extension can be used, and what a user learns if not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import pytest

from forerun.kernels import cpu


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    cpu.unusable.cache_clear()
    cpu._module.cache_clear()
    yield
    cpu.unusable.cache_clear()
    cpu._module.cache_clear()


def swiglu(x: mx.array) -> mx.array:
    gate, up = mx.split(x, 2, axis=1)
    return gate * mx.sigmoid(gate) * up


def put(monkeypatch: pytest.MonkeyPatch, **names: Any) -> ModuleType:
    """A module in place of the extension: right, but for `names`."""
    module = ModuleType("forerun._cpu")
    vars(module).update({"MLX_VERSION": version("mlx"), "swiglu": swiglu} | names)
    monkeypatch.setitem(sys.modules, "forerun._cpu", module)
    return module


def reason() -> str:
    unusable = cpu.unusable()
    assert unusable is not None
    assert unusable.remedy
    assert cpu.extension() is None
    return unusable.reason


@pytest.mark.skipif(cpu.NOT_BUILT.is_file(), reason="installed without a compiler")
def test_the_extension_that_was_built_is_used() -> None:
    assert cpu.unusable() is None
    module = cpu.extension()
    assert module is not None
    assert module.instruction_set() in module.instruction_sets()


def test_one_that_works_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert put(monkeypatch) is cpu.extension()


def test_none_was_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "forerun._cpu", None)
    monkeypatch.setattr(cpu, "NOT_BUILT", tmp_path / "not_built.txt")
    assert reason() == "they were not built"
    cpu.unusable.cache_clear()
    cpu._module.cache_clear()
    cpu.NOT_BUILT.write_text("there was no C++ compiler\n")
    assert reason() == "there was no C++ compiler"


def test_one_of_another_mlx_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, MLX_VERSION="0.1", swiglu=None)
    assert reason() == f"they were built for MLX 0.1, and {version('mlx')} is installed"


def test_one_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def undefined(name: str) -> ModuleType:
        raise ImportError("undefined symbol: x")

    monkeypatch.setattr(cpu, "import_module", undefined)
    assert reason() == "they cannot be loaded: undefined symbol: x"


def test_one_of_another_nanobind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(x: mx.array) -> mx.array:
        raise TypeError("swiglu(): incompatible function arguments.\nInvoked with types: mlx.core.array")

    put(monkeypatch, swiglu=refuses)
    assert reason() == "they do not know MLX's arrays: swiglu(): incompatible function arguments."


@pytest.mark.parametrize("factor", [1.001, mx.nan])
def test_one_that_is_wrong(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    put(monkeypatch, swiglu=lambda x: swiglu(x) * factor)
    assert reason().startswith("they compute wrong results on this processor")
