"""How a process computes: its numerics, the type of its numbers and its BLAS, chosen once by the settings and the machine.

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


# A GPU's numbers do not depend on the BLAS beside it, and what is kept of conversations names what they were computed with.
GPU_PRODUCTS = "none (the GPU multiplies)"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a process has chosen for life. blas: what serves its products, by name."""

    is_exact: bool
    blas: str

    @property
    def numerics(self) -> Numerics:
        """The kernels. Raises ConfigError where the device does not have them."""
        from forerun.kernels.numerics import EXACT, FAST

        if self.is_exact and not is_cpu():
            raise ConfigError("numerics 'reference' runs on CPU only", hint="use --numerics served on this device")
        return EXACT if self.is_exact else FAST

    @property
    def dtype(self) -> str:
        """Of weights, keys and values."""
        return dtype_on(is_cpu=is_cpu())


def choose(config: Config) -> Arithmetic:
    """The arithmetic of these settings, its BLAS loaded. `config.prepare` must have run, and nothing may have imported mlx.core.

    Raises UnsupportedError: there is no such BLAS.
    """
    is_exact = config.numerics == "exact" or (config.numerics == "auto" and not _has_gpu())
    loaded = blas.load(config.blas, row_invariant=is_exact)  # on a GPU too, which may turn out not to be there
    return Arithmetic(is_exact, loaded if is_cpu() else GPU_PRODUCTS)


def dtype_on(*, is_cpu: bool) -> str:
    """What weights, keys and values are made of on a device: a CPU has no fast products of 16 bits."""
    return "float32" if is_cpu else "bfloat16"


def is_cpu() -> bool:
    """Whether MLX runs on the CPU."""
    import mlx.core as mx

    return bool(mx.default_device() == mx.cpu)


def _has_gpu() -> bool:
    """Whether MLX has a GPU to run on here, told without importing it."""
    return platform.system() != "Linux" or any((d.name or "").startswith("mlx-cuda") for d in distributions())
