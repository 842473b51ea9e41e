"""docs/cli.md says what the command line says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from forerun.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def sections(command: Any, name: str) -> Iterator[str]:
    """A section for each command: its help, and a row for each of its arguments and options."""
    for child_name, child in getattr(command, "commands", {}).items():
        yield from sections(child, f"{name} {child_name}")
    if not hasattr(command, "commands"):
        rows = [f"| `{spelled(each)}` | {each.help} |" for each in command.params]
        yield "\n".join([f"## `{name}`", "", command.help, "", "| | |", "|---|---|", *rows])


def spelled(parameter: Any) -> str:
    return ", ".join(parameter.opts) if parameter.opts[0].startswith("-") else parameter.name.upper()


def test_the_page_is_what_the_commands_say() -> None:
    written = PAGE.read_text()
    expected = "\n\n".join(sections(typer.main.get_command(app), "forerun"))
    assert written[written.index("## ") :].rstrip("\n") == expected
