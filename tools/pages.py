"""Generates the pages of `docs/` on commands and settings: `python -m tools.pages`. tests/cli/test_docs.py checks them.

The text before the generated part is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from forerun.cli import app
from forerun.cli.config import written
from forerun.config import ENV_PREFIX, Config

DOCS = Path(__file__).parents[1] / "docs"


def cli() -> str:
    """A section for each command."""
    return "\n\n".join(_sections(typer.main.get_command(app), "forerun"))


def config() -> str:
    """A row for each setting."""
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    flags = {each.name: _spelled(each) for each in serve.params}
    rows = [
        f"| `{name}` | {f'`{flags[name]}`' if name in flags else ''} | `{ENV_PREFIX}{name.upper()}` "
        f"| {written(name, field.default, '' if field.default == 'auto' else 'not set')} | {field.description} |"
        for name, field in Config.model_fields.items()
    ]
    return "\n".join(["| key | flag | environment | default | meaning |", "|---|---|---|---|---|", *rows])


# The text with which the generated part of each page begins.
PAGES = {"cli.md": ("## `forerun serve`", cli), "config.md": ("| key |", config)}


def page(name: str) -> str:
    """The page with its generated part up to date."""
    first, generate = PAGES[name]
    text = (DOCS / name).read_text()
    return text[: text.index(first)] + generate() + "\n"


def _sections(command: Any, name: str) -> Iterator[str]:
    """A command's help, and a row for each of its arguments and options."""
    for child_name, child in getattr(command, "commands", {}).items():
        yield from _sections(child, f"{name} {child_name}")
    if not hasattr(command, "commands"):
        rows = [f"| `{_spelled(each)}` | {each.help} |" for each in command.params]
        yield "\n".join([f"## `{name}`", "", command.help, "", "| | |", "|---|---|", *rows])


def _spelled(parameter: Any) -> str:
    return ", ".join([*parameter.opts, *parameter.secondary_opts]) if parameter.opts[0].startswith("-") else parameter.name.upper()


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name))
