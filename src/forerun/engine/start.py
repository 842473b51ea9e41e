"""From settings to a running engine. Knows only the order: the BLAS must be loaded before anything imports MLX (assemble.py does)."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import distributions

from forerun.config import Config
from forerun.engine.engine import Engine
from forerun.kernels import blas


def start(config: Config, progress: Callable[[str, float], None]) -> Engine:
    """The engine of these settings, ready to serve. `config.prepare` must have run, and nothing may have imported mlx.core.

    progress: called with what is being done and how far it is, 0 to 1. Raises ConfigError, ModelError, BankError, UnsupportedError.
    """
    blas_name = blas.load(config.blas, row_invariant=is_reference(config))
    from forerun.engine.assemble import assemble

    return assemble(config, is_reference(config), blas_name, progress)


def is_reference(config: Config) -> bool:
    """Whether these settings ask for the reference numerics, on this machine."""
    return config.numerics == "reference" or (config.numerics == "auto" and runs_on_cpu())


def runs_on_cpu() -> bool:
    """Whether MLX has no GPU to run on here, told without importing it."""
    return platform.system() == "Linux" and not any((d.name or "").startswith("mlx-cuda") for d in distributions())
