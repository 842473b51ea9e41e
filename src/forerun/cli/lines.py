"""Lines and tables for people, which break between words only, so that names and paths can be copied; and the same as JSON."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

LEAST_COLUMNS = 20
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def aligned(rows: Iterable[Sequence[str]], columns: int) -> Iterator[str]:
    """Rows of equally many cells in aligned columns; the last cell is wrapped where the line would be longer than `columns`."""
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)] if rows else []
    for *cells, last in rows:
        head = "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=True))
        first, *others = wrapped(last, max(LEAST_COLUMNS, columns - len(head)))
        yield f"{head}{first}".rstrip()
        yield from (" " * len(head) + line for line in others)


def wrapped(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many columns, longer only where a word is; at least one."""
    return textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False) or [""]


def borderless(columns: Sequence[str], *, numbers: Collection[str], wrapped: Collection[str]) -> Table:
    """A table for rows to come. numbers: columns that are aligned right. wrapped: those whose text may break."""
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        grid.add_column(column, no_wrap=column not in wrapped, justify="right" if column in numbers else "left")
    return grid


def answer(value: Any, text: str, *, as_json: bool) -> None:
    """Print what a command has done: the value as JSON for programs, or the text for people."""
    if as_json:
        sys.stdout.write(json.dumps(value) + "\n")
    else:
        say(*text.split("\n"))


def say(*paragraphs: str, file: TextIO | None = None) -> None:
    """Print each paragraph: wrapped on a terminal, elsewhere on one line."""
    file = file or sys.stdout
    for text in paragraphs:
        lines = wrapped(text, Console(file=file).width) if file.isatty() else [text]
        file.write("\n".join(lines) + "\n")
