"""`forerun config`: the settings, their origins, and the values of those left unset. Knows no server; reads no weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.filesize import decimal

from forerun.cli.lines import AsJson, aligned
from forerun.config import Config, config_file, format_bytes, prepare, resolve
from forerun.errors import ForerunError, UnsupportedError

app = typer.Typer(help="Show the settings.", no_args_is_help=True)


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show every setting that a server would start with, its value on this machine if it is unset, and its origin."""
    config, origins = resolve({})
    resolved = {name: text for name, text in left_open(config) if getattr(config, name) in (None, "auto")}
    if as_json:
        values = {name: {"value": value, "origin": origins[name]} for name, value in config.model_dump(mode="json").items()}
        settings = {name: value | ({"comes_to": resolved[name]} if name in resolved else {}) for name, value in values.items()}
        typer.echo(json.dumps({"file": str(config_file()), "settings": settings}))
        return
    rows = [(name, origins[name], written(name, getattr(config, name), resolved.get(name, ""))) for name in Config.model_fields]
    missing = "" if config_file().exists() else " (does not exist)"
    typer.echo("\n".join([*aligned([("setting", "from", "value"), *rows], Console().width), "", f"file: {config_file()}{missing}"]))


def left_open(config: Config) -> Iterator[tuple[str, str]]:
    """The value on this machine of each setting that may be unset or "auto", as text."""
    from forerun.bank.tier.quota import daily_limit, disk_limit, held_bytes

    yield "model", "demo-model, the bundled one"
    yield "bank_dir", str(config.bank_path)
    yield "bank_disk_bytes", decimal(disk_limit(config, held_bytes(config)))
    yield "bank_daily_write_bytes", decimal(daily_limit(config))
    yield "request_log", str(config.request_log_path)
    yield from ((name, "no limit") for name in ("requests_per_minute", "max_thinking_tokens"))
    yield "allowed_hosts", "any" if config.api_key or config.api_key_file else "this machine's own"
    yield from ((name, "none") for name in ("api_key_file", "api_key", "archive_key_file", "cors_origins"))
    yield from of_model(config)


def of_model(config: Config) -> Iterator[tuple[str, str]]:
    """What depends on the model: its headers are read, no weights. Where they cannot be, why."""
    prepare(config)
    from forerun.cli.models import this_machine
    from forerun.decode.depth import AUTO_DEPTH
    from forerun.engine.context import LEAST_TOKENS
    from forerun.engine.loading import memory_bytes
    from forerun.hub.catalogue import locate
    from forerun.models.fit import fit, is_supported
    from forerun.models.inspect import read_checkpoint
    from forerun.models.load import DEMO_MODEL
    from forerun.state.layout import limits_of

    try:
        checkpoint = read_checkpoint(locate(config.model).folder if config.model else DEMO_MODEL)
        if not is_supported(checkpoint):
            raise UnsupportedError(f"forerun does not serve {checkpoint.family}")
        cost = fit(checkpoint, this_machine(config))
    except ForerunError as error:
        yield from ((name, f"not known: {error}") for name in ("context", "decode_layout", "draft_depth"))
        return
    yield "context", f"{min(cost.declared_tokens, max(cost.memory_tokens, LEAST_TOKENS)):,} tokens"
    dense_tokens = limits_of(cost.bytes_per_1000_tokens // 1000, memory_bytes() // 2).dense_tokens
    yield "decode_layout", f"contiguous up to {dense_tokens:,} tokens, paged above"
    yield "draft_depth", "0, the model has no MTP head" if checkpoint.mtp == "none" else f"0 to {AUTO_DEPTH}, whichever is fastest"


def written(name: str, value: Any, resolved: str = "") -> str:
    """A value as written in the file. resolved: what it comes to if it is left open, otherwise ""."""
    match value:
        case None:
            return resolved or "not set"
        case "auto":
            return f"auto: {resolved}" if resolved else "auto"
        case bool():
            return str(value).lower()
        case int() if name.endswith("_bytes"):
            return format_bytes(value)
        case Path() | int():
            return str(value)
    return f"{value}"
