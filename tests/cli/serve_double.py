"""`forerun serve` as a program, with an engine that has no model: `python serve_double.py CLOSE_S serve ...`. Loads no MLX."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

from prometheus_client import CollectorRegistry

from forerun.cli import main
from forerun.config import Config
from forerun.values import NEUTRAL, BankHealth, Health, Job, ModelInfo


class Engine:
    """Has a model's facts, and takes CLOSE_S seconds to close."""

    failure = ""
    registry, sessions = CollectorRegistry(), None

    def __init__(self, config: Config, close_s: float) -> None:
        context = config.context or 4096
        self.info = ModelInfo("double", "none", "cpu", "exact", "none", context, 0, NEUTRAL, config.model is None, ("norms: told",))
        self._close_s = close_s

    async def submit(self, job: Job) -> object:
        raise NotImplementedError

    def health(self) -> Health:
        return Health("ok", True, (), 0, 0, BankHealth(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ""))

    def announce(self, address: str) -> None: ...

    async def close(self, limit_s: float) -> None:
        print(f"closing within {limit_s:.0f} s", file=sys.stderr, flush=True)
        await asyncio.sleep(self._close_s)
        print("closed", file=sys.stderr, flush=True)


def start(config: Config, progress: Callable[[str, float], None]) -> Engine:
    progress("reading weights", 0.5)
    return Engine(config, close_s)


if __name__ == "__main__":
    close_s = float(sys.argv.pop(1))
    sys.modules["forerun.engine.start"] = module = ModuleType("forerun.engine.start")
    vars(module).update(vars(SimpleNamespace(start=start)))
    main()
