"""The numerics of a process, from the setting and the machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forerun.config import Config
from forerun.errors import ConfigError
from forerun.kernels import arithmetic, blas
from forerun.kernels.arithmetic import Arithmetic


@pytest.mark.parametrize(
    ("setting", "system", "package", "is_exact"),
    [
        ("auto", "Linux", "mlx-cpu", True),
        ("auto", "Linux", "mlx-cuda-13", False),
        ("auto", "Darwin", "mlx-metal", False),
        ("fast", "Linux", "mlx-cpu", False),
        ("exact", "Linux", "mlx-cuda-13", True),
    ],
)
def test_numerics_are_those_requested_or_the_machines_default(
    monkeypatch: pytest.MonkeyPatch, setting: str, system: str, package: str, is_exact: bool
) -> None:
    monkeypatch.setattr(arithmetic.platform, "system", lambda: system)
    monkeypatch.setattr(arithmetic, "distributions", lambda: [SimpleNamespace(name="numpy"), SimpleNamespace(name=package)])
    monkeypatch.setattr(blas, "load", lambda choice, *, row_invariant: f"{choice}, {row_invariant}")
    monkeypatch.setattr(arithmetic, "is_cpu", lambda: True)
    chosen = arithmetic.choose(Config.model_validate({"numerics": setting, "blas": "wheel"}))
    assert chosen == Arithmetic(is_exact, f"wheel, {is_exact}")


@pytest.mark.parametrize("name", ["OpenBLAS", "reference BLAS of the MLX wheel (slow)"])
def test_what_a_gpu_computes_names_no_blas(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Otherwise installing one would change the identity, and a server on a GPU would warn that it is slow."""
    monkeypatch.setattr(blas, "load", lambda choice, *, row_invariant: name)
    monkeypatch.setattr(arithmetic, "is_cpu", lambda: False)
    assert arithmetic.choose(Config.model_validate({"numerics": "fast"})).blas == "none (the GPU multiplies)"


@pytest.mark.parametrize(("is_cpu", "dtype"), [(True, "float32"), (False, "bfloat16")])
def test_a_gpu_has_16_bits_and_no_exact_numerics(monkeypatch: pytest.MonkeyPatch, is_cpu: bool, dtype: str) -> None:
    monkeypatch.setattr(arithmetic, "is_cpu", lambda: is_cpu)
    assert Arithmetic(False, "").numerics.name == "fast"
    assert Arithmetic(False, "").dtype == dtype
    if is_cpu:
        assert Arithmetic(True, "").numerics.name == "exact"
        return
    with pytest.raises(ConfigError, match="runs on CPU only"):
        _ = Arithmetic(True, "").numerics
