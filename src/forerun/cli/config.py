"""`forerun config`: what is set, where, and what one that is left open comes to here. Knows no server; reads no weights."""

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

app = typer.Typer(help="Look at the settings.", no_args_is_help=True)


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show every setting that a server would start with, what it comes to if it is left open, and where its value comes from."""
    config, origins = resolve({})
    found = {name: text for name, text in left_open(config) if getattr(config, name) is None}
    if as_json:
        values = {name: {"value": value, "origin": origins[name]} for name, value in config.model_dump(mode="json").items()}
        told = {name: value | ({"comes_to": found[name]} if name in found else {}) for name, value in values.items()}
        typer.echo(json.dumps({"file": str(config_file()), "settings": told}))
        return
    drawn = Table("setting", Column("value", overflow="fold"), "from", box=None)
    for name in Config.model_fields:
        drawn.add_row(name, found[name] if name in found else written(name, getattr(config, name)), origins[name])
    Console(highlight=False).print(drawn, f"\nfile: {config_file()}{'' if config_file().exists() else ' (does not exist)'}", sep="\n")


def left_open(config: Config) -> Iterator[tuple[str, str]]:
    """What each setting without a value of its own comes to, were it left open, in words."""
    from forerun.bank.tier.quota import daily_limit, disk_limit, held_bytes

    yield "model", "demo-model, the bundled one"
    yield "bank_dir", str(config.bank_path)
    yield "bank_disk_bytes", decimal(disk_limit(config, held_bytes(config)))
    yield "bank_daily_write_bytes", decimal(daily_limit(config))
    yield "context", context(config)
    yield "request_log", str(config.request_log_path)
    yield "requests_per_minute", "no limit"
    yield from ((name, "none") for name in ("api_key_file", "api_key", "archive_key_file", "cors_origins"))


def context(config: Config) -> str:
    """Tokens that a server would give a conversation, told from the headers of the model's files; or why that cannot be told."""
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
        found = fit(checkpoint, this_machine(config))
    except ForerunError as error:
        return f"not known: {error}"
    return f"{min(found.declared_tokens, max(found.memory_tokens, LEAST_TOKENS)):,} tokens"


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
