"""Before any test imports MLX: no setting of the user's, a cache folder of the tests' own, and the BLAS of the reference numerics."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from forerun import config
from forerun.kernels import blas

for name in [name for name in os.environ if name.startswith(config.ENV_PREFIX)]:
    del os.environ[name]
# Each of several processes has its own: MLX does not expect two to compile the same kernel into one folder.
_home = Path(__file__).parents[1] / ".pytest_cache" / f"home{os.environ.get('PYTEST_XDIST_WORKER', '')}"
os.environ["XDG_CACHE_HOME"] = str(_home / "cache")
os.environ["XDG_CONFIG_HOME"] = str(_home / "config")
os.environ["XDG_STATE_HOME"] = str(_home / "state")

# A machine that is busy with other work is no fault of what is tested.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

config.prepare(config.Config())
BLAS = blas.load("auto", row_invariant=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="folder to write what the long tests counted")


@pytest.fixture
def write_result(request: pytest.FixtureRequest) -> Callable[[str, dict[str, Any]], None]:
    """Writes NAME.json if a folder is given, with the evidence that every result file has."""

    def write(name: str, found: dict[str, Any]) -> None:
        folder: Path | None = request.config.getoption("--results")
        if folder is not None:
            from benchmarks.evidence import evidence
            from tests import tiny

            head = evidence(blas=BLAS, model_digest=tiny.demo().digest, numerics="exact", config={"test": request.node.nodeid})
            (folder / f"{name}.json").write_text(json.dumps(head | found, indent=1) + "\n")

    return write
