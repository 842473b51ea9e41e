"""Before any test imports MLX: no setting of the user's, a cache folder of the tests' own, and the BLAS of the reference numerics."""

import os
from pathlib import Path

from forerun import config
from forerun.kernels import blas

for name in [name for name in os.environ if name.startswith(config.ENV_PREFIX)]:
    del os.environ[name]
_home = Path(__file__).parents[1] / ".pytest_cache" / "home"
os.environ["XDG_CACHE_HOME"] = str(_home / "cache")
os.environ["XDG_CONFIG_HOME"] = str(_home / "config")

config.prepare(config.Config())
blas.load("auto", row_invariant=True)
