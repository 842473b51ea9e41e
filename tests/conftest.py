"""Before any test imports MLX: no setting of the user's, and a cache folder of the tests' own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from forerun import config

if TYPE_CHECKING:
    from forerun.kernels.numerics import Numerics

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="folder to write what the long tests counted")


@pytest.fixture
def without_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Array operations compute, as where there are no CPU kernels. Families choose at construction: build them in the test."""
    from forerun.kernels import cpu

    monkeypatch.setattr(cpu, "extension", lambda: None)


@pytest.fixture
def numerics(request: pytest.FixtureRequest) -> Numerics:
    """An indirect parameter: `exact` by the CPU kernels, `exact-arrays` and `fast` by array operations."""
    chosen: Numerics = request.param
    if chosen.name != "exact":
        request.getfixturevalue("without_cpu_kernels")
    return chosen


@pytest.fixture
def write_result(request: pytest.FixtureRequest) -> Callable[[str, dict[str, Any]], None]:
    """Writes NAME.json if a folder is given, with the evidence that every result file has."""

    def write(name: str, found: dict[str, Any]) -> None:
        folder: Path | None = request.config.getoption("--results")
        if folder is not None:
            from benchmarks.evidence import evidence
            from tests import tiny

            from forerun.kernels import arithmetic

            here, config = arithmetic.here(), {"test": request.node.nodeid}
            head = evidence(kernels=here.kernels, model_digest=tiny.demo().digest, numerics=here.numerics.name, config=config)
            (folder / f"{name}.json").write_text(json.dumps(head | found, indent=1) + "\n")

    return write
