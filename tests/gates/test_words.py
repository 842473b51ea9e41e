"""Code, messages and pages use the field's words, one for one thing. Holds what can be decided by a pattern; the rest is for a reviewer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src/forerun", "docs", "benchmarks", "tools")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")

# Pattern of what is not written: the word to write.
WORDS = {
    r"laws?": "distribution (of a token), property (of a function)",
    r"marks?|marked": "snapshot (of recurrent state), tag (in text)",
    r"trails?": "prefix chain",
    r"doors?": "request guard",
    r"trunk": "target model",
    r"tells?(?! me)|told|telling": "report, log, return, name, warn: the one that is meant",
    r"how manieth|for want of|of no account|no saying which": "plain English",
    r"in its turn|its turn comes|has its turn": "is scheduled",
    r"[`'\"](?:reference|served)[`'\"]": "`exact` and `fast` (numerics)",
    r"(?:reference|served) numerics": "exact numerics, fast numerics",
}
NOT_WRITTEN = re.compile("|".join(rf"(?P<w{i}>(?<![\w.-])(?:{pattern})(?![\w-]))" for i, pattern in enumerate(WORDS)), re.IGNORECASE)
# What a class must not be called: a participle alone does not say what it holds. These are adjectives of the field.
PARTICIPLE = re.compile(
    r"_?[A-Z][a-z]*ed$|_?(?:Left|Known|Given|Found|Written|Kept|Told|Gone|Taken|Seen|Made|Read|Lost|Why|Room|Stock|Reach)$"
)
FIELD_WORDS = {"Paged", "Feed"}


def sources() -> list[Path]:
    found = [path for folder in FOLDERS for kind in ("*.py", "*.md", "*.cu", "*.cuh") for path in (ROOT / folder).rglob(kind)]
    return sorted(found) + [ROOT / page for page in PAGES]


def not_written(text: str) -> Iterator[str]:
    """What of the text is written otherwise here: the line, what stands there, and the word for it."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in NOT_WRITTEN.finditer(line):
            instead = list(WORDS.values())[int(str(match.lastgroup)[1:])]
            yield f"line {number}: {match.group()!r}, write: {instead}"


def participles(source: str) -> list[str]:
    """Classes of a module that are called by a participle alone."""
    names = (node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return [name for name in names if PARTICIPLE.fullmatch(name) and name not in FIELD_WORDS]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_speaks_the_words_of_the_field(path: Path) -> None:
    assert list(not_written(path.read_text())) == []
    if path.suffix == ".py":
        assert participles(path.read_text()) == []


@pytest.mark.parametrize(
    "text", ["the law of a token", "Marks are", "a request at the doors", "it is told why", "`served` numerics", 'x == "reference"']
)
def test_a_word_of_our_own_is_seen(text: str) -> None:
    assert len(list(not_written(text))) >= 1


@pytest.mark.parametrize("text", ["a snapshot record", "the reference implementation", "requests served", "outlaw", "pytest_mark"])
def test_a_word_of_the_field_is_none(text: str) -> None:
    assert list(not_written(text)) == []


def test_a_participle_is_no_name_of_a_class() -> None:
    assert participles("class Turned: ...\nclass Left: ...\nclass FinishedTurn: ...\nclass Paged: ...") == ["Turned", "Left"]
