"""`forerun bank`: manages the folder of stored conversations. Needs no model and no MLX.

Commands for single conversations are in conversations.py. `verify` and `explain` only read files, also while a server runs; `prune` needs
the folder for itself.
"""

from __future__ import annotations

import json
import re
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
from forerun.cli.conversations import BankDir, counted
from forerun.cli.lines import AsJson, answer, say
from forerun.cli.report import parse
from forerun.cli.session_access import open_for_changes, open_read_only
from forerun.config import load, parse_bytes
from forerun.errors import BankLockedError, ConfigError, ForerunError
from forerun.log import short_id
from forerun.request_log.entry import Entry
from forerun.request_log.file import read_lines
from forerun.values import Report

app = typer.Typer(help="Manage the stored conversations.", no_args_is_help=True)
for each in (conversations.ls, conversations.show, conversations.pin, conversations.unpin, conversations.name, conversations.fork):
    app.command()(each)
app.command()(conversations.export)
app.command("import")(conversations.import_)
app.command()(conversations.rm)
app.command()(conversations.wipe)

ToBytes = Annotated[str, typer.Option(help="largest size of the folder, such as 2GiB or 500MB")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="a request's id, or as much of it as is unique")]
Log = Annotated[Path | None, typer.Option(help="request log; default: that of the settings", show_default=False)]
EXPLAINED = ("session", "source", "reused_tokens", "computed_tokens", "reason", "miss")


@app.command()
def verify(bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Read the index and every record, and check every byte; exit code 1 if something is damaged."""
    with open_read_only(load({"bank_dir": bank_dir}).bank_path) as tier:
        infos = tier.index.inventory()
        tracked = track(infos, "reading", console=Console(stderr=True), transient=True)
        damage = tier.index.damage() + [text for info in tracked if (text := tier.damage(info.key))]
    if as_json:
        typer.echo(json.dumps({"records": len(infos), "damaged": damage}))
    else:
        remedy = ["a server quarantines damaged records by itself and recomputes the prompt; is the disk failing?"] if damage else []
        say(*[*damage, f"{counted(len(infos), 'record')} read, {len(damage)} damaged", *remedy])
    raise typer.Exit(1 if damage else 0)


@app.command()
def explain(request: RequestId, log: Log = None, as_json: AsJson = False) -> None:
    """Show what a logged request reused, and if that was not everything, why."""
    path = log if log is not None else load({}).request_log_path
    entries = [entry for entry in parse(read_lines(path))[0] if is_meant(entry.id, request)]
    if len(entries) != 1 or entries[0].report is None:
        raise ForerunError(unexplained(request, entries, path), hint="a request is logged when it ends; its id is in the response")
    report = entries[0].report
    fields = {"id": entries[0].id, **{name: value for name, value in asdict(report).items() if name in EXPLAINED}}
    answer(fields, "\n".join(explanation(report)), as_json=as_json)


def is_meant(id: str, word: str) -> bool:
    """Whether the word is the beginning of a request's id, of what follows its dialect's prefix, or the id as the log shows it."""
    return id.startswith(word) or re.sub(r"^[a-z]+[-_]", "", id).startswith(word) or short_id(id) == word


def unexplained(request: str, entries: list[Entry], path: Path) -> str:
    """The error message where `request` does not name exactly one finished request of the log at `path`."""
    if len(entries) == 1:
        return f"{entries[0].id} produced no token: {entries[0].error or entries[0].outcome}"
    number, begin = (f"{len(entries)} requests", "begin") if entries else ("no request", "begins")
    return f"{number} in {path} {begin} with {request!r}"


def explanation(report: Report) -> list[str]:
    """The reuse in a report, in lines."""
    total = report.reused_tokens + report.computed_tokens
    lines = [f"{report.reused_tokens:,} of {total:,} tokens were reused ({report.source}), in conversation {short_id(report.session)}"]
    rest = f"the other {report.computed_tokens:,} are new" if report.computed_tokens else "nothing had to be computed"
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
    """Remove the least recently used records until the folder is no larger than this."""
    limit_bytes = size(to_bytes)
    try:
        with open_for_changes(load({"bank_dir": bank_dir})) as tier:
            removed = list(shrink(tier, limit_bytes))
            stats = {"removed": len(removed), "bytes": tier.num_bytes}
    except BankLockedError as error:
        raise BankLockedError(str(error), hint="stop that server first; the other commands work while it runs") from error
    answer(stats, f"{counted(stats['removed'], 'record')} removed, {decimal(stats['bytes'])} left", as_json=as_json)


def shrink(tier: DiskTier, limit_bytes: int) -> Iterator[str]:
    """Delete records, least recently used first, until the tier fits or only pinned conversations are left. Yields their keys."""
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
