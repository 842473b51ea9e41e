"""`forerun models`: pull, list, convert and inspect models. Needs no server; commands import MLX and the hub's library where needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from forerun.cli.lines import AsJson, aligned, answer, say
from forerun.cli.serve import loading_bar
from forerun.config import Config, load, prepare
from forerun.errors import ConfigError, UnsupportedError
from forerun.hub.catalogue import PulledModel, find, locate, pulled
from forerun.log import short_id

if TYPE_CHECKING:
    from forerun.models.fit import Machine
    from forerun.models.recipe import Recipe

app = typer.Typer(help="Manage the models on this machine.", no_args_is_help=True)

FOLDER_OR_NAME = "a model's folder, a GGUF file, or the name of a pulled model"
Inspected = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help=f"{FOLDER_OR_NAME}; the bundled demo model if not given", show_default=False),
]
Repo = Annotated[str, typer.Argument(metavar="REPO", help="a model's name on the hub, such as Qwen/Qwen3.5-0.8B")]
Revision = Annotated[str, typer.Option(help="branch, tag or commit")]
Source = Annotated[str, typer.Argument(metavar="SRC", help="an unquantised model: its folder, or the name of a pulled one")]
Target = Annotated[Path, typer.Argument(metavar="DST", help="the folder to write, which must not exist")]
Bits = Annotated[int, typer.Option(help="bits per weight: 2, 3, 4, 5, 6 or 8; 16 does not quantise")]
GroupSize = Annotated[int, typer.Option(help="weights that share a scale: 32, 64 or 128")]
Override = Annotated[
    list[str], typer.Option(metavar="PATTERN=BITS", help="other bits for matrices with such a name, such as '*.down_proj=8'")
]
Preset = Annotated[str, typer.Option(help="uniform, or optimized-speed: 8 bits for the ends, the delta nets' outputs and the last 8 MLPs")]
ForceMtp = Annotated[bool, typer.Option("--force-mtp", help="quantise the MTP head too; its drafts are then accepted less often, or never")]


@app.command()
def pull(repo: Repo, revision: Revision = "main", as_json: AsJson = False) -> None:
    """Fetch a model from the hub, or resume an interrupted download. `forerun serve REPO` then serves exactly this commit."""
    from forerun.hub.pull import pull

    with download_bar() as progress:
        entry = pull(repo, revision, progress)
    answer(described(entry), f"{repo} at {short_id(entry.commit)}, {decimal(entry.num_bytes)}, in {entry.folder}", as_json=as_json)


@app.command()
def ls(as_json: AsJson = False) -> None:
    """List the pulled models, each with its commit."""
    entries = pulled()
    if as_json:
        typer.echo(json.dumps([described(entry) for entry in entries]))
        return
    if not entries:
        say("no models were pulled; `forerun models pull REPO` fetches one from the hub")
        return
    rows = [("model", "revision", "commit", "size", "pulled", "")]
    for entry in entries:
        state = f"not complete: pull it again ({len(entry.missing)} files are missing)" if entry.missing else ""
        rows.append((entry.repo, entry.revision, short_id(entry.commit), decimal(entry.num_bytes), entry.pulled_at[:10], state))
    typer.echo("\n".join(aligned(rows, Console().width)))


@app.command()
def rm(repo: Repo, as_json: AsJson = False) -> None:
    """Remove a pulled model, and its files from the hub's cache."""
    find(repo)
    from forerun.hub.pull import remove

    freed_bytes = remove(repo)
    answer({"repo": repo, "freed_bytes": freed_bytes}, f"{repo} removed, {decimal(freed_bytes)} freed", as_json=as_json)


@app.command()
def convert(
    source: Source,
    target: Target,
    bits: Bits = 4,
    group_size: GroupSize = 32,
    override: Override = [],  # noqa: B006
    preset: Preset = "uniform",
    force_mtp: ForceMtp = False,
    as_json: AsJson = False,
) -> None:
    """Quantise a model for MLX, so that forerun and mlx-lm can serve it. The MTP head is not quantised."""
    folder, recipe_of = folder_of(source), recipe_maker(bits, group_size, override, preset, force_mtp)
    prepare(load({}))
    from forerun.models.checkpoint import read_json
    from forerun.models.convert import convert

    with loading_bar() as progress:
        written = convert(folder, target, recipe_of(read_json(folder / "config.json")), progress)
    facts = {"folder": str(target), "bytes": written.num_bytes, "parameters": written.num_params, "quantised": len(written.quantised)}
    per_weight = f"{8 * written.num_bytes / written.num_params:.1f} bits a parameter"
    answer(facts, f"{target}: {decimal(written.num_bytes)}, {per_weight}; loaded once, as a check", as_json=as_json)


def recipe_maker(bits: int, group_size: int, override: list[str], preset: str, force_mtp: bool) -> Callable[[dict[str, Any]], Recipe]:
    """A function from a model's configuration to the requested recipe. Raises ConfigError."""
    from forerun.kernels.quantised import Scheme
    from forerun.models.recipe import PRESETS, Recipe

    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: there is no such", hint=f"there are {', '.join(PRESETS)}")
    own = tuple(parsed_override(text) for text in override)
    return lambda config: Recipe(Scheme("affine", bits, group_size), PRESETS[preset](config), own, force_mtp)


def parsed_override(text: str) -> tuple[str, int]:
    """Pattern and bits of "PATTERN=BITS". Raises ConfigError."""
    pattern, _, bits = text.rpartition("=")
    if not pattern or not bits.isdecimal():
        raise ConfigError(f"--override {text!r}", hint="for example '*.down_proj=8'; 16 does not quantise a matrix")
    return pattern, int(bits)


@app.command()
def inspect(model: Inspected = None, as_json: AsJson = False) -> None:
    """Show a model's parts, its cost on this machine, and what would be slow. Reads no weights."""
    from forerun.models.fit import fit, is_supported
    from forerun.models.inspect import read_checkpoint
    from forerun.models.load import DEMO_MODEL

    checkpoint = read_checkpoint(locate(model).folder if model else DEMO_MODEL)
    facts: dict[str, Any] = {
        "model": model or DEMO_MODEL.name,
        "family": checkpoint.family,
        "supported": is_supported(checkpoint),
        "parameters": checkpoint.num_params,
        "active_parameters": checkpoint.num_active_params,
        "bytes": checkpoint.num_bytes,
        "mtp": checkpoint.mtp,
        "kinds": [asdict(kind) for kind in checkpoint.kinds()],
        "here": asdict(fit(checkpoint, this_machine(load({})))) if is_supported(checkpoint) else None,
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        Console(highlight=False, markup=False).print(*overview(facts), kinds_table(facts), *costs(facts), sep="\n")


def folder_of(model: str) -> Path:
    """The folder of a model. Raises ModelError; UnsupportedError for a model in one file (GGUF), which cannot be converted."""
    folder = locate(model).folder
    if folder.is_file():
        raise UnsupportedError(f"{model} is one file; only folders with config.json and safetensors weights can be converted")
    return folder


@contextmanager
def download_bar() -> Iterator[Callable[[int, int], None]]:
    """A function to call with the bytes present and the total; drawn only on a terminal."""
    console = Console(stderr=True)
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("pulling", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def described(entry: PulledModel) -> dict[str, Any]:
    """A model for programs."""
    return asdict(entry) | {"folder": str(entry.folder), "bytes": entry.num_bytes, "missing": entry.missing}


def this_machine(config: Config) -> Machine:
    """The memory and disk that a server would have here, with these settings."""
    from forerun.bank.tier.quota import disk_limit, held_bytes
    from forerun.engine.loading import memory_bytes
    from forerun.kernels import cpu
    from forerun.kernels.arithmetic import is_cpu
    from forerun.models.fit import Machine

    return Machine(memory_bytes(), config.bank_ram_bytes, disk_limit(config, held_bytes(config)), is_cpu(), cpu.extension() is not None)


def overview(facts: dict[str, Any]) -> list[str]:
    """The model's properties, one per line."""
    here = "" if facts["supported"] else " (not served: forerun does not implement this family)"
    active = f", {amount(facts['active_parameters'])} for each token" if facts["active_parameters"] < 0.9 * facts["parameters"] else ""
    return [
        f"{facts['model']}",
        f"family       {facts['family']}{here}",
        f"parameters   {amount(facts['parameters'])}{active}; {decimal(facts['bytes'])} in files",
        f"MTP head     {facts['mtp']}",
        "",
    ]


def kinds_table(facts: dict[str, Any]) -> Table:
    """One row per kind of module."""
    grid = Table("modules", "number", "parameters", "bytes", "stored as", box=None)
    for kind in facts["kinds"]:
        formats = kind["formats"].items()
        stored = ", ".join(name if len(formats) == 1 else f"{name} ({num / kind['num_params']:.0%})" for name, num in formats)
        grid.add_row(kind["name"], f"{kind['num_modules']:,}", amount(kind["num_params"]), decimal(kind["num_bytes"]), stored)
    return grid


def costs(facts: dict[str, Any]) -> list[str]:
    """The costs on this machine, one per line."""
    here = facts["here"]
    if here is None:
        return []
    return [
        "",
        f"here         {decimal(here['weights_bytes'])} of memory for the weights, states in {here['dtype']}",
        f"conversation {decimal(here['bytes_per_1000_tokens'])} for 1,000 tokens, {decimal(here['bytes_per_snapshot'])} for a snapshot",
        f"context      {here['memory_tokens']:,} tokens fit in memory, of {here['declared_tokens']:,} that the model declares",
        f"bank         {here['bank_tokens']:,} tokens fit on disk",
        *(f"slow         {reason}" for reason in here["slow"]),
    ]


def amount(num: int) -> str:
    """A number of parameters for people: 27.3 B, 9.0 M."""
    unit, name = next(((unit, name) for unit, name in ((10**9, " B"), (10**6, " M"), (10**3, " k")) if num >= unit), (1, ""))
    return f"{num / unit:.1f}{name}" if name else str(num)
