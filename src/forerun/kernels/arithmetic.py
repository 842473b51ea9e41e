"""How a process computes: numerics, dtype and BLAS, chosen once from the settings and the machine.

Imports MLX only where an answer depends on the device. Knows no model.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from forerun.config import Config
from forerun.errors import ConfigError
from forerun.kernels import blas

if TYPE_CHECKING:
    from forerun.kernels.numerics import Numerics


# Results on a GPU do not depend on the BLAS, and the identity of stored conversations names what they were computed with.
GPU_PRODUCTS = "none (the GPU multiplies)"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The choice of a process, for its lifetime. blas: name of the library for matrix products."""

    is_exact: bool
    blas: str

    @property
    def numerics(self) -> Numerics:
        """The kernels. Raises ConfigError if the device does not have them."""
        from forerun.kernels.numerics import EXACT, FAST

        if self.is_exact and not is_cpu():
            raise ConfigError("numerics 'exact' runs on CPU only", hint="use --numerics fast on this device")
        return EXACT if self.is_exact else FAST

    @property
    def dtype(self) -> str:
        """The dtype of weights, keys and values."""
        return dtype_on(is_cpu=is_cpu())


def choose(config: Config) -> Arithmetic:
    """The arithmetic of these settings, with its BLAS loaded. Call after `config.prepare` and before mlx.core is imported.

    Raises UnsupportedError if there is no such BLAS.
    """
    is_exact = means_exact(config)
    loaded = blas.load(config.blas, row_invariant=is_exact)  # with a GPU too, since it may turn out to be missing
    return Arithmetic(is_exact, loaded if is_cpu() else GPU_PRODUCTS)


def means_exact(config: Config) -> bool:
    """Whether these settings come to `exact` numerics here."""
    return config.numerics == "exact" or (config.numerics == "auto" and not _has_gpu())


def dtype_on(*, is_cpu: bool) -> str:
    """The dtype of weights, keys and values on a device: a CPU has no fast 16-bit products."""
    return "float32" if is_cpu else "bfloat16"


def is_cpu() -> bool:
    """Whether MLX runs on the CPU."""
    import mlx.core as mx

    return bool(mx.default_device() == mx.cpu)


def _has_gpu() -> bool:
    """Whether MLX has a GPU here, determined without importing MLX."""
    return platform.system() != "Linux" or any((d.name or "").startswith("mlx-cuda") for d in distributions())
