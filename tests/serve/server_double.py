"""`forerun serve` as a program, around the engine double: `python -m tests.serve.server_double serve ...`. Loads no MLX."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

from tests.serve.engine_double import Engine

from forerun.cli import main

if __name__ == "__main__":
    sys.modules["forerun.engine.start"] = module = ModuleType("forerun.engine.start")
    vars(module).update(vars(SimpleNamespace(start=lambda config, progress: Engine())))
    main()
