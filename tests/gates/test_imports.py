"""Who may import whom, and what importing must not load. Reads the sources; imports forerun in processes of its own only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "forerun"

# Low to high. A module imports from levels below its own and from its own package, never from a neighbour on its level.
LEVELS = (
    ("errors", "values", "log", "small_files"),
    ("config", "machine", "network"),
    ("kernels", "text", "request_log"),
    ("grammar", "sampling", "state"),
    ("models", "bank", "hub"),
    ("decode",),
    ("engine",),
    ("serve",),
    ("chat", "demo", "doctor"),
    ("bench",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
LOADED_WITHOUT_MLX = ("errors", "values", "log", "config", "request_log", "text", "grammar", "hub", "serve", "demo", "cli")


def parts() -> set[str]:
    """Top-level modules and packages of forerun."""
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def imported(source: str) -> Iterator[str]:
    """Names of forerun that a module imports, anywhere in it: inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith("forerun."))


def offences(part: str, source: str) -> list[str]:
    """What a module of `part` imports against the order."""
    others = [name.split(".")[1] for name in imported(source)]
    return [other for other in others if other in LEVEL and other != part and LEVEL[other] >= LEVEL[part]]


def outside(outer: str, inner: str, source: str) -> list[str]:
    """What a module of the package `inner` within `outer` imports of `outer` but for `inner` itself."""
    around, own = f"forerun.{outer}.", f"forerun.{outer}.{inner}."
    return [name for name in imported(source) if name.startswith(around) and not name.startswith(own)]


def circle(sources: Mapping[str, str]) -> list[str]:
    """Modules, of these by name, that import each other in a circle, for types too; the last is the first again. Empty if none do."""
    graph = {name: {known(each, sources) for each in imported(source)} & sources.keys() for name, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def known(name: str, sources: Mapping[str, str]) -> str:
    """The module that an imported name is, or is of."""
    return name if name in sources else name.rpartition(".")[0]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle({f"forerun.{'.'.join(p.relative_to(PACKAGE).with_suffix('').parts)}": p.read_text() for p in PACKAGE.rglob("*.py")}) == []


def test_a_circle_of_imports_is_seen() -> None:
    back = "if TYPE_CHECKING:\n    from forerun.a import A"
    assert set(circle({"forerun.a": "import forerun.b", "forerun.b": back, "forerun.c": back})) == {"forerun.a", "forerun.b"}


def test_every_part_has_a_level() -> None:
    assert parts() <= LEVEL.keys()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if part != "__init__":
        assert offences(part, path.read_text()) == []


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("bank/tier/*.py")), ids=lambda path: path.name)
def test_the_tiers_import_nothing_of_the_bank_around_them(path: Path) -> None:
    assert outside("bank", "tier", path.read_text()) == []


def test_an_import_from_around_a_package_within_a_package_is_seen() -> None:
    assert outside("bank", "tier", "from forerun.bank import policy") == ["forerun.bank.policy"]
    assert outside("bank", "tier", "from forerun.bank.tier import files") == []


@pytest.mark.parametrize(
    "source",
    [
        "import forerun.engine",
        "from forerun import engine",
        "from forerun.bank import tier",
        "def late():\n    from forerun.decode.round import step",
        "if TYPE_CHECKING:\n    from forerun.bank.tier.base import Tier",
    ],
)
def test_an_upward_or_sideways_import_is_seen(source: str) -> None:
    assert len(offences("models", source)) == 1


def loaded_by(part: str) -> set[str]:
    """Top-level modules in a new process after every module of `part` was imported."""
    program = (
        "import importlib, pkgutil, sys\n"
        f"root = importlib.import_module('forerun.{part}')\n"
        f"for found in pkgutil.walk_packages(getattr(root, '__path__', []), 'forerun.{part}.'):\n"
        "    importlib.import_module(found.name)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    return set(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("part", LOADED_WITHOUT_MLX)
def test_loads_without_mlx(part: str) -> None:
    if part not in parts():
        pytest.skip(f"no forerun.{part} yet")
    assert not {"mlx", "torch", "transformers"} & loaded_by(part)


def test_the_command_line_starts_without_the_library_of_the_hub() -> None:
    assert "huggingface_hub" not in loaded_by("cli")


def test_loading_mlx_would_be_seen() -> None:
    assert "mlx" in loaded_by("kernels")
    assert "huggingface_hub" in loaded_by("hub")
