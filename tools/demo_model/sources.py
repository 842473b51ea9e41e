"""The sources of the corpus: the manifest's entry and the files of each. Knows nothing of conversations or tokens."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SUFFIXES = {"code": (".py", ".rst", "METADATA"), "heldout": (".py",), "prose": (".txt", ".rst", ".md")}
LEFT_OUT = {"_vendor", "__pycache__", "extern", "externals", "third_party", "locale", "node_modules"}
TEST_FILE = re.compile(r"(^|/)tests?(/|_|ing/)|(^|/)test_|_pb2|conftest")
PIECE_CHARACTERS = 24_000
BOOK_CHARACTERS = 30_000


@dataclass(frozen=True)
class Source:
    """An entry of the manifest. dir: folder below the root. keep: share of the files that is read; of test files, `tests` of that."""

    dir: str
    name: str
    version: str
    licence: str
    kind: Literal["code", "prose", "heldout"]
    keep: float = 1.0
    tests: float = 0.35


def manifest(path: Path) -> list[Source]:
    """The sources that a manifest lists, by name."""
    return sorted((Source(**entry) for entry in json.loads(path.read_text())), key=lambda source: source.name)


def chance(key: str) -> float:
    """A number in [0, 1) that depends on the key alone."""
    return int(hashlib.sha1(key.encode()).hexdigest()[:8], 16) / 2**32


def texts_of(source: Source, root: Path) -> Iterator[tuple[str, str]]:
    """(path shown to the model, text) of all that is used of a source: each text once, books in pieces, what is no plain text left out."""
    seen: set[str] = set()
    for path, text in _files_of(source, root):
        if text in seen:
            continue
        seen.add(text)
        pieces = list(_pieces(text)) if source.kind == "prose" and len(text) > BOOK_CHARACTERS else [text]
        for index, piece in enumerate(pieces):
            if is_acceptable(piece, is_prose=source.kind == "prose"):
                yield (path if len(pieces) == 1 else f"{path}#{index}"), piece


def is_acceptable(text: str, *, is_prose: bool) -> bool:
    """Plain, human-sized text: no data tables, no minified lines, mostly ASCII."""
    if not 200 <= len(text) <= 200_000 or "\x00" in text or "<|" in text:
        return False
    lines = text.split("\n")
    if not is_prose and (max(map(len, lines)) > 1000 or len(text) / len(lines) > 120):
        return False
    sample = text[:20_000]
    num_digits, num_foreign = sum(map(str.isdigit, sample)), sum(ord(character) > 127 for character in sample)
    return num_digits <= 0.12 * len(sample) and num_foreign < 0.05 * len(sample)


def _files_of(source: Source, root: Path) -> Iterator[tuple[str, str]]:
    for path in _walk(root / source.dir):
        shown = path.relative_to(root / source.dir).as_posix()
        if not path.name.endswith(SUFFIXES[source.kind]) or not _is_kept(source, shown):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path.name == "METADATA":
            text = text.split("\n\n", 1)[-1]
        yield shown, text.replace("\t", "    ")


def _walk(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        yield from (Path(where, name) for name in sorted(names))


def _is_kept(source: Source, shown: str) -> bool:
    share = source.keep * (source.tests if TEST_FILE.search(shown) else 1.0)
    return chance(source.name + shown) < share


def _pieces(text: str) -> Iterator[str]:
    """A book or manual in pieces of some PIECE_CHARACTERS, cut at blank lines."""
    piece: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        piece.append(paragraph)
        size += len(paragraph)
        if size > PIECE_CHARACTERS:
            yield "\n\n".join(piece)
            piece, size = [], 0
    if piece:
        yield "\n\n".join(piece)
