"""`forerun config`: what is set, and where. Knows the settings; no server and no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from forerun.config import Config, config_file, format_bytes, resolve

app = typer.Typer(help="Look at the settings.", no_args_is_help=True)


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show every setting that a server would start with, and where its value comes from: default, file or environment."""
    config, origins = resolve({})
    if as_json:
        values = {name: {"value": value, "origin": origins[name]} for name, value in config.model_dump(mode="json").items()}
        typer.echo(json.dumps({"file": str(config_file()), "settings": values}))
        return
    drawn = Table("setting", "value", "from", box=None)
    for name in Config.model_fields:
        drawn.add_row(name, written(name, getattr(config, name)), origins[name])
    Console(highlight=False).print(drawn, f"\nfile: {config_file()}{'' if config_file().exists() else ' (does not exist)'}", sep="\n")


def written(name: str, value: Any) -> str:
    """A value as one would write it in the file."""
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case int() if name.endswith("_bytes"):
            return format_bytes(value)
        case Path() | int():
            return str(value)
    return f"{value}"
