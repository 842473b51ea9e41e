"""`forerun bank`: looks at the folder of stored conversations, checks it, makes it smaller. Needs no server, no model and no MLX.

`ls`, `show` and `verify` change nothing and work beside a running server; `prune` needs the folder for itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from rich.table import Table

from forerun.bank.disk import UNLIMITED_BYTES, DiskTier
from forerun.bank.index import Entry, Index
from forerun.cli.report import parse
from forerun.config import load, parse_bytes
from forerun.errors import BankLockedError, ConfigError, ForerunError
from forerun.request_log.file import read_lines
from forerun.values import Report

app = typer.Typer(help="Look after the stored conversations.", no_args_is_help=True)

BankDir = Annotated[Path | None, typer.Option(help="folder of stored conversations", show_default=False)]
Key = Annotated[str, typer.Argument(help="a record's key, or as much of it as is unique")]
ToBytes = Annotated[str, typer.Option(help="what may stay, such as 2GiB or 500MB")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="a request's id, or as much of it as is unique")]
Log = Annotated[Path | None, typer.Option(help="request log; the server's own if not given", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
RECONCILE_S = 600.0
EXPLAINED = ("session", "source", "reused_tokens", "computed_tokens", "reason", "miss")


@app.command()
def ls(bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """List the places at which a stored conversation can be taken up again, the last used first."""
    with looking(bank_dir) as tier:
        marks = tier.index.marks()
        total = {"records": len(list(tier.inventory())), "bytes": tier.num_bytes, "quarantined": tier.quarantined}
        total |= {"sessions": tier.index.totals.sessions, "written_today_bytes": tier.written_today_bytes}
    if as_json:
        typer.echo(json.dumps({"marks": [described(mark) for mark in marks], **total}))
    else:
        Console(highlight=False).print(table(marks), summary(marks, total), sep="\n")


@app.command()
def show(key: Key, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Show what is known of one record."""
    with looking(bank_dir) as tier:
        found = [described(entry) for entry in tier.index.lowest(len(list(tier.inventory()))) if entry.info.key.startswith(key)]
    if len(found) != 1:
        raise ForerunError(f"{counted(len(found), 'record')} begin with {key!r}", hint="see `forerun bank ls`")
    typer.echo(json.dumps(found[0]) if as_json else "\n".join(f"{name:<12} {value}" for name, value in found[0].items()))


@app.command()
def verify(bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Read every record and check every byte of it; exit code 1 if one is damaged."""
    with looking(bank_dir) as tier:
        infos = list(tier.inventory())
        shown = track(infos, "reading", console=Console(stderr=True), transient=True)
        damage = [text for info in shown if (text := tier.damage(info.key))]
    if as_json:
        typer.echo(json.dumps({"records": len(infos), "damaged": damage}))
    else:
        typer.echo("\n".join([*damage, f"{counted(len(infos), 'record')} read, {len(damage)} damaged"]))
    raise typer.Exit(1 if damage else 0)


@app.command()
def explain(request: RequestId, log: Log = None, as_json: AsJson = False) -> None:
    """Say of a logged request what it could reuse, and if that was not all, why."""
    path = log if log is not None else load({}).request_log_path
    entries = [entry for entry in parse(read_lines(path))[0] if entry.id.startswith(request)]
    if len(entries) != 1 or entries[0].report is None:
        found = f"{counted(len(entries), 'request')} in {path} begin with {request!r}" if len(entries) != 1 else "it made no token"
        raise ForerunError(found, hint="a request is logged when it ends; its id is in the response")
    report = entries[0].report
    told = {"id": entries[0].id, **{name: value for name, value in asdict(report).items() if name in EXPLAINED}}
    typer.echo(json.dumps(told) if as_json else "\n".join(explanation(report)))


def explanation(report: Report) -> list[str]:
    """What a report says of reuse, in lines."""
    total = report.reused_tokens + report.computed_tokens
    lines = [f"{report.reused_tokens:,} of {total:,} tokens were reused ({report.source}), in conversation {report.session}"]
    lines.append(report.reason or "that is all that is stored of this prompt")
    if report.miss and report.miss.where:
        lines.append(f"the first token that differs is number {report.miss.at_token:,}, in {report.miss.where}")
    if report.miss and (report.miss.prompt_text or report.miss.stored_text):
        lines += [f"  prompt  {report.miss.prompt_text!r}", f"  stored  {report.miss.stored_text!r}"]
    return lines


@app.command()
def prune(to_bytes: ToBytes, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Remove what was not used for longest, until the folder is no larger than this."""
    limit_bytes = size(to_bytes)
    folder = load({"bank_dir": bank_dir}).bank_path
    tier = DiskTier(folder, limit_bytes=UNLIMITED_BYTES, daily_limit_bytes=UNLIMITED_BYTES, index=held(folder))
    try:
        tier.wait_until_reconciled(RECONCILE_S)
        removed = list(shrink(tier, limit_bytes))
        figures = {"removed": len(removed), "bytes": tier.num_bytes}
    finally:
        tier.close()
    typer.echo(json.dumps(figures) if as_json else f"{counted(figures['removed'], 'record')} removed, {decimal(figures['bytes'])} left")


def held(folder: Path) -> Index:
    """The index of a folder that is there, for this process alone. Raises BankError, ForerunError."""
    if not folder.is_dir() or not any(folder.iterdir()):
        what = "nothing is stored in" if folder.is_dir() else "there is no folder"
        raise ForerunError(f"{what} {folder}", hint="name the folder with --bank-dir")
    try:
        return Index.hold(folder)
    except BankLockedError as error:
        raise BankLockedError(str(error), hint="stop that server first; `bank ls`, `show` and `verify` work beside it") from error


def shrink(tier: DiskTier, limit_bytes: int) -> Iterator[str]:
    """Delete records, those first that were not used for longest, until the tier fits; their keys."""
    tier.clear_quarantine()
    while tier.num_bytes > limit_bytes and (lowest := tier.index.lowest(1)):
        tier.delete(lowest[0].info.key)
        yield lowest[0].info.key


@contextmanager
def looking(bank_dir: Path | None) -> Iterator[DiskTier]:
    """The tier of the folder, for looking only. Raises BankError if nothing is there."""
    tier = DiskTier.view(load({"bank_dir": bank_dir}).bank_path)
    try:
        yield tier
    finally:
        tier.close()


def table(marks: list[Entry]) -> Table:
    """One row a mark."""
    drawn = Table("key", "session", "tokens", "bytes", "last used", "uses", box=None)
    for mark in marks:
        sizes = f"{mark.info.stop:,}", decimal(mark.info.num_bytes)
        drawn.add_row(mark.info.key[:12], mark.session, *sizes, moment(mark.used_s), str(mark.uses))
    return drawn


def summary(marks: list[Entry], total: dict[str, int]) -> str:
    """What the folder holds, in one line."""
    conversations = len({(mark.tenant, mark.session) for mark in marks})
    kept = f"{counted(len(marks), 'place')} in {counted(conversations, 'conversation')}, {counted(total['records'], 'record')}"
    size = f"{decimal(total['bytes'])} in all, {decimal(total['written_today_bytes'])} written today"
    return f"{kept}, {size}, {total['quarantined']} set aside as damaged"


def counted(number: int, noun: str) -> str:
    """ "1 record", "2 records"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def described(entry: Entry) -> dict[str, Any]:
    """A record for programs: all that the index knows but the tokens, of which only their places are told."""
    fields = {**asdict(entry.info), "stop": entry.info.stop}
    del fields["tokens"]
    uses = {"created": moment(entry.created_s), "last_used": moment(entry.used_s), "uses": entry.uses, "session": entry.session}
    return {**fields, **uses}


def moment(unix_s: float) -> str:
    """A moment in UTC, ISO 8601."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


def size(text: str) -> int:
    """Bytes of "2GiB". Raises ConfigError."""
    try:
        return int(str(parse_bytes(text)))
    except ValueError as error:
        raise ConfigError(f"--to-bytes {text!r}: {error}") from error
