"""Every path that the documents name exists, and every name of the code that the pages about the code mention."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
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
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "tour.md", *sorted(ROOT.glob("docs/decisions/*.md"))]
CODE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)`")  # in backticks: a class, a function, a dotted name; not a path with folders
PLACED = re.compile(r"`(\w+)`(?: and `(\w+)`)? in `([\w/.]+\.py)`")  # a name, or two, and the file that should have it
FILES = (".py", ".md", ".cu", ".h", ".cpp", ".txt", ".json", ".db", ".jsonl", ".svg")


def named_paths(text: str) -> Iterator[str]:
    """Relative paths in a document: every link, and in backticks what lies under a folder of ours or is a source or a page."""
    ours = {path.name for path in ROOT.iterdir()}
    yield from LINK.findall(text)
    for name in CODE.findall(text):
        if ("/" in name and name.split("/")[0] in ours) or name.endswith((".py", ".md", ".sh")):
            yield name


def is_there(name: str, document: Path) -> bool:
    """Paths are relative to the root of the repository, the package or the document's own folder."""
    return any((base / name).exists() for base in (ROOT, ROOT / "src" / "forerun", document.parent))


@cache
def words_of_the_code() -> frozenset[str]:
    """Every word in the sources of the package."""
    return frozenset(word for path in (ROOT / "src").rglob("*.py") for word in re.findall(r"\w+", path.read_text()))


def unknown_names(text: str) -> list[str]:
    """Names in backticks of which a part is no word of the package's sources."""
    names = [name for name in NAME.findall(text) if not name.endswith(FILES)]
    return [name for name in names if not set(name.split(".")) <= words_of_the_code()]


def misplaced_names(text: str) -> list[str]:
    """What a text of the form "`name` in `file.py`" names, and the file does not have."""
    found = []
    for *names, path in PLACED.findall(text):
        words = set(re.findall(r"\w+", (ROOT / "src" / "forerun" / path).read_text()))
        found += [f"{name} in {path}" for name in names if name and name not in words]
    return found


def anchors(document: Path) -> set[str]:
    """The anchors of a page's headings, as hosts make them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_exist(document: Path) -> None:
    assert [name for name in named_paths(document.read_text()) if not is_there(name, document)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_anchors_exist(document: Path) -> None:
    links = [(document.parent / page if page else document, anchor) for page, anchor in ANCHOR.findall(document.read_text())]
    assert [f"{page.name}#{anchor}" for page, anchor in links if anchor not in anchors(page)] == []


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_names_exist(document: Path) -> None:
    assert unknown_names(document.read_text()) == []
    assert misplaced_names(document.read_text()) == []


def test_a_missing_path_is_seen() -> None:
    text = "See `src/forerun/nowhere.py`, `tests/`, [this](docs/nothing.md#part), `application/json`, `/health` and `a.toml`."
    assert [name for name in named_paths(text) if not is_there(name, ROOT / "README.md")] == ["docs/nothing.md", "src/forerun/nowhere.py"]


def test_a_missing_name_is_seen() -> None:
    assert unknown_names("`Bank.restore`, `NoSuchClass`, `Bank.no_such_method`, `text/no_such.py`, `--flag`") == [
        "NoSuchClass",
        "Bank.no_such_method",
    ]


def test_a_misplaced_name_is_seen() -> None:
    text = "`Bank` in `bank/bank.py`; `rank_s` and `Bank` in `bank/policy.py`"
    assert misplaced_names(text) == ["Bank in bank/policy.py"]


def test_anchors_are_those_of_the_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n## What is `stored`, and when?\n")
    assert anchors(page) == {"a-page", "what-is-stored-and-when"}
