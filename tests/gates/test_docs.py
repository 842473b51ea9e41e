"""Every path that the documents name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("tools/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
        *ROOT.glob("src/**/*.md"),
    ]
)
CODE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def named_paths(text: str) -> Iterator[str]:
    """Relative paths in a document: every link, and in backticks what lies under a folder of ours or is a source or a page."""
    ours = {path.name for path in ROOT.iterdir()}
    yield from LINK.findall(text)
    for name in CODE.findall(text):
        if ("/" in name and name.split("/")[0] in ours) or name.endswith((".py", ".md", ".sh")):
            yield name


def is_there(name: str, document: Path) -> bool:
    """Paths are read from the root of the repository, from the package or from the document's own folder."""
    return any((base / name).exists() for base in (ROOT, ROOT / "src" / "forerun", document.parent))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_exist(document: Path) -> None:
    assert [name for name in named_paths(document.read_text()) if not is_there(name, document)] == []


def test_a_missing_path_is_seen() -> None:
    text = "See `src/forerun/nowhere.py`, `tests/`, [this](docs/nothing.md#part), `application/json`, `/health` and `a.toml`."
    assert [name for name in named_paths(text) if not is_there(name, ROOT / "README.md")] == ["docs/nothing.md", "src/forerun/nowhere.py"]
