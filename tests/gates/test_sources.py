"""No module depends on where this or another machine keeps its files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "forerun"
# Where a system keeps its libraries, and where Linux tells of limits, is the same on all machines of a kind.
ROOTS = "bin dev etc home lib lib64 mnt opt private proc root run srv tmp var work Users Library Applications"
OTHERS = "sys(?!/fs/cgroup/) usr(?!/lib(?:64)?/)"
MACHINE_PATH = re.compile(rf"/(?:{f'{ROOTS} {OTHERS}'.replace(' ', '|')})(?:/|$)")


def machine_paths(source: str) -> list[str]:
    """Strings of a module that begin with an absolute path of a machine. Routes (`/v1/...`) and docstrings are none."""
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [text for text in strings if MACHINE_PATH.match(text)]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_no_path_of_a_machine(path: Path) -> None:
    assert machine_paths(path.read_text()) == []


@pytest.mark.parametrize("text", ["/usr/share/dict/words", "/sys/fs", "/tmp", "/home/me/model"])
def test_a_path_is_seen(text: str) -> None:
    assert machine_paths(f"open({text!r})") == [text]


@pytest.mark.parametrize("text", ["/v1/models", "/health", "a/tmp/b", "/usr/lib/libopenblas.so", "/sys/fs/cgroup/memory.max"])
def test_a_route_or_a_system_library_is_none(text: str) -> None:
    assert machine_paths(f"get({text!r})") == []
