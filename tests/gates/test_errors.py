"""Every row of the table of errors names the test that shows it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs" / "errors.md").read_text().splitlines() if re.match(r"\| (?!what happened)", line)]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)` \|$")


@cache
def functions_of(file: str) -> set[str]:
    """Names of the test functions in a file, none if it does not exist."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0][2:40])
def test_a_row_names_its_test(row: str) -> None:
    named = TEST.search(row)
    assert named, f"no test at the end of: {row}"
    assert named[2] in functions_of(named[1]), f"{named[0]} does not exist"


def test_the_page_has_rows_and_a_missing_test_is_seen() -> None:
    assert len(ROWS) > 25
    assert "test_nothing" not in functions_of("tests/gates/test_errors.py")
    assert functions_of("tests/nowhere.py") == set()
