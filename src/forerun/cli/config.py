"""`forerun config`: the settings, their origins, and the values of those left unset. Knows no server; reads no weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table

from forerun.config import Config, config_file, format_bytes, prepare, resolve
from forerun.errors import ForerunError

app = typer.Typer(help="Show the settings.", no_args_is_help=True)


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show every setting that a server would start with, its value on this machine if it is unset, and its origin."""
    config, origins = resolve({})
    resolved = {name: text for name, text in unset(config) if getattr(config, name) is None}
    if as_json:
        values = {name: {"value": value, "origin": origins[name]} for name, value in config.model_dump(mode="json").items()}
        settings = {name: value | ({"comes_to": resolved[name]} if name in resolved else {}) for name, value in values.items()}
        typer.echo(json.dumps({"file": str(config_file()), "settings": settings}))
        return
    grid = Table("setting", Column("value", overflow="fold"), "from", box=None)
    for name in Config.model_fields:
        grid.add_row(name, resolved[name] if name in resolved else written(name, getattr(config, name)), origins[name])
    Console(highlight=False).print(grid, f"\nfile: {config_file()}{'' if config_file().exists() else ' (does not exist)'}", sep="\n")


def unset(config: Config) -> Iterator[tuple[str, str]]:
    """The value on this machine of each setting that may be unset, as text."""
    from forerun.bank.tier.quota import daily_limit, disk_limit, held_bytes

    yield "model", "demo-model, the bundled one"
    yield "bank_dir", str(config.bank_path)
    yield "bank_disk_bytes", decimal(disk_limit(config, held_bytes(config)))
    yield "bank_daily_write_bytes", decimal(daily_limit(config))
    yield "context", context(config)
    yield "request_log", str(config.request_log_path)
    yield "requests_per_minute", "no limit"
    yield "allowed_hosts", "any" if config.api_key or config.api_key_file else "this machine's own"
    yield from ((name, "none") for name in ("api_key_file", "api_key", "archive_key_file", "cors_origins"))


def context(config: Config) -> str:
    """The context length that a server would use, from the headers of the model's files; or why it is not known."""
    prepare(config)
    from forerun.cli.models import folder_of, this_machine
    from forerun.engine.context import LEAST_TOKENS
    from forerun.models.fit import fit, is_supported
    from forerun.models.inspect import read_checkpoint
    from forerun.models.load import DEMO_MODEL

    try:
        checkpoint = read_checkpoint(folder_of(config.model) if config.model else DEMO_MODEL)
        if not is_supported(checkpoint):
            return f"not known: forerun does not serve {checkpoint.family}"
        cost = fit(checkpoint, this_machine(config))
    except ForerunError as error:
        return f"not known: {error}"
    return f"{min(cost.declared_tokens, max(cost.memory_tokens, LEAST_TOKENS)):,} tokens"


def written(name: str, value: Any) -> str:
    """A value as written in the file."""
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
