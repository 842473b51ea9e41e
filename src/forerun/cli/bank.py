"""`forerun bank`: looks after the folder of stored conversations. Needs no model and no MLX.

What is about single conversations is in conversations.py. `verify` and `explain` look at files, beside a server too; `prune` needs the
folder for itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track

from forerun.bank.stored import usable_keys
from forerun.bank.tier.disk import DiskTier
from forerun.cli import conversations
from forerun.cli.conversations import AsJson, BankDir, counted
from forerun.cli.report import parse
from forerun.cli.session_access import holding, looking
from forerun.config import load, parse_bytes
from forerun.errors import BankLockedError, ConfigError, ForerunError
from forerun.request_log.entry import Entry
from forerun.request_log.file import read_lines
from forerun.values import Report

app = typer.Typer(help="Look after the stored conversations.", no_args_is_help=True)
for each in (conversations.ls, conversations.show, conversations.pin, conversations.unpin, conversations.name, conversations.fork):
    app.command()(each)
app.command()(conversations.export)
app.command("import")(conversations.import_)
app.command()(conversations.rm)
app.command()(conversations.wipe)

ToBytes = Annotated[str, typer.Option(help="what may stay, such as 2GiB or 500MB")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="a request's id, or as much of it as is unique")]
Log = Annotated[Path | None, typer.Option(help="request log; the server's own if not given", show_default=False)]
EXPLAINED = ("session", "source", "reused_tokens", "computed_tokens", "reason", "miss")


@app.command()
def verify(bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Read the index and every record, and check every byte; exit code 1 if something is damaged."""
    with looking(load({"bank_dir": bank_dir}).bank_path) as tier:
        infos = tier.index.inventory()
        shown = track(infos, "reading", console=Console(stderr=True), transient=True)
        damage = tier.index.damage() + [text for info in shown if (text := tier.damage(info.key))]
    if as_json:
        typer.echo(json.dumps({"records": len(infos), "damaged": damage}))
    else:
        remedy = ["a server sets damaged records aside by itself and reads the prompt instead; is the disk failing?"] if damage else []
        typer.echo("\n".join([*damage, f"{counted(len(infos), 'record')} read, {len(damage)} damaged", *remedy]))
    raise typer.Exit(1 if damage else 0)


@app.command()
def explain(request: RequestId, log: Log = None, as_json: AsJson = False) -> None:
    """Say of a logged request what it could reuse, and if that was not all, why."""
    path = log if log is not None else load({}).request_log_path
    entries = [entry for entry in parse(read_lines(path))[0] if entry.id.startswith(request)]
    if len(entries) != 1 or entries[0].report is None:
        raise ForerunError(unexplained(request, entries, path), hint="a request is logged when it ends; its id is in the response")
    report = entries[0].report
    told = {"id": entries[0].id, **{name: value for name, value in asdict(report).items() if name in EXPLAINED}}
    typer.echo(json.dumps(told) if as_json else "\n".join(explanation(report)))


def unexplained(request: str, entries: list[Entry], path: Path) -> str:
    """Why nothing can be said of what these entries of the log at `path` begin with."""
    if len(entries) == 1:
        return f"{entries[0].id} gave no token: {entries[0].error or entries[0].outcome}"
    found, begin = (f"{len(entries)} requests", "begin") if entries else ("no request", "begins")
    return f"{found} in {path} {begin} with {request!r}"


def explanation(report: Report) -> list[str]:
    """What a report says of reuse, in lines."""
    total = report.reused_tokens + report.computed_tokens
    lines = [f"{report.reused_tokens:,} of {total:,} tokens were reused ({report.source}), in conversation {report.session}"]
    rest = f"the other {report.computed_tokens:,} are new" if report.computed_tokens else "nothing had to be read"
    lines.append(report.reason or f"that is all that is stored of this prompt: {rest}")
    if report.miss and report.miss.where:
        lines.append(f"the first token that differs is number {report.miss.at_token:,}, in {report.miss.location}")
    if report.miss and (report.miss.prompt_text or report.miss.stored_text):
        lines += [f"  prompt  {report.miss.prompt_text!r}", f"  stored  {report.miss.stored_text!r}"]
    elif report.miss and report.miss.where:
        lines.append("both texts were in the response; the log has them with request_log_content = true")
    return lines


@app.command()
def prune(to_bytes: ToBytes, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Remove what was not used for longest, until the folder is no larger than this."""
    limit_bytes = size(to_bytes)
    try:
        with holding(load({"bank_dir": bank_dir})) as tier:
            removed = list(shrink(tier, limit_bytes))
            stats = {"removed": len(removed), "bytes": tier.num_bytes}
    except BankLockedError as error:
        raise BankLockedError(str(error), hint="stop that server first; the other commands work beside it") from error
    typer.echo(json.dumps(stats) if as_json else f"{counted(stats['removed'], 'record')} removed, {decimal(stats['bytes'])} left")


def shrink(tier: DiskTier, limit_bytes: int) -> Iterator[str]:
    """Delete records, those first that were not used for longest, until the tier fits or only pinned conversations are left; their keys."""
    tier.clear_quarantine()
    pinned = usable_keys(tier.index, tier.index.pinned_sessions())
    while tier.num_bytes > limit_bytes and (lowest := tier.index.lowest(1, pinned)):
        tier.delete(lowest[0].info.key)
        tier.index.note_lost([lowest[0].info], "evicted", "`forerun bank prune` removed it", time.time())
        yield lowest[0].info.key


def size(text: str) -> int:
    """Bytes of "2GiB". Raises ConfigError."""
    try:
        return int(str(parse_bytes(text)))
    except ValueError as error:
        raise ConfigError(f"--to-bytes {text!r}: {error}") from error
