"""Starts an engine from settings. Knows only the order: the BLAS must be loaded before anything imports MLX (assemble.py does)."""

from __future__ import annotations

from collections.abc import Callable

from forerun.config import Config
from forerun.engine.engine import Engine
from forerun.kernels import arithmetic


def start(config: Config, progress: Callable[[str, float], None]) -> Engine:
    """The engine of these settings, ready to serve. Call `config.prepare` before; nothing may have imported mlx.core yet.

    progress: receives the current step and its share done, 0 to 1. Raises ConfigError, ModelError, BankError, UnsupportedError.
    """
    chosen = arithmetic.choose(config)
    from forerun.engine.assemble import assemble

    return assemble(config, chosen, progress)
