"""Starts an engine from settings: MLX is imported here and not before, after `config.prepare`."""

from __future__ import annotations

from collections.abc import Callable

from forerun.config import Config
from forerun.engine.engine import Engine


def start(config: Config, progress: Callable[[str, float], None]) -> Engine:
    """The engine of these settings, ready to serve. Call `config.prepare` before; nothing may have imported mlx.core yet.

    progress: receives the current step and its share done, 0 to 1. Raises ConfigError, ModelError, BankError, UnsupportedError.
    """
    from forerun.engine.assemble import assemble
    from forerun.kernels import arithmetic

    return assemble(config, arithmetic.here(), progress)
