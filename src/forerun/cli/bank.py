"""`forerun bank`: looks after the stored conversations. Needs no model and no MLX.

While a server holds the folder, conversations are asked of it and changed by it. `verify` looks at the files themselves, beside a server
too; `prune` needs the folder for itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from rich.table import Table

from forerun.bank.disk import DiskTier
from forerun.bank.index import Entry
from forerun.bank.stored import usable_keys
from forerun.cli.kept import chosen, holding, kept_in, looking
from forerun.cli.report import parse
from forerun.config import load, parse_bytes
from forerun.errors import BankLockedError, ConfigError, ForerunError
from forerun.request_log.file import read_lines
from forerun.values import Report, SessionInfo

app = typer.Typer(help="Look after the stored conversations.", no_args_is_help=True)

BankDir = Annotated[Path | None, typer.Option(help="folder of stored conversations", show_default=False)]
Conversation = Annotated[str, typer.Argument(metavar="SESSION", help="a conversation's id, its name, or as much of the id as is unique")]
Name = Annotated[str, typer.Argument(help='its name for people; "" takes it away')]
NewId = Annotated[str | None, typer.Argument(help="id of the new conversation; the bank gives it one if not given", show_default=False)]
GivenName = Annotated[str, typer.Option("--name", help="its name for people", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
ToBytes = Annotated[str, typer.Option(help="what may stay, such as 2GiB or 500MB")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="a request's id, or as much of it as is unique")]
Log = Annotated[Path | None, typer.Option(help="request log; the server's own if not given", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
EXPLAINED = ("session", "source", "reused_tokens", "computed_tokens", "reason", "miss")


@app.command()
def ls(bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """List the conversations that are kept, the last used first."""
    config = load({"bank_dir": bank_dir})
    with kept_in(config, only_looks=True) as kept:
        sessions = kept.all()
    with looking(config.bank_path) as tier:
        total = {"records": len(list(tier.inventory())), "bytes": tier.num_bytes, "quarantined": tier.quarantined}
        total |= {"written_today_bytes": tier.written_today_bytes}
    if as_json:
        typer.echo(json.dumps({"sessions": [asdict(session) for session in sessions], **total}))
    else:
        Console(highlight=False).print(table(sessions), summary(sessions, total), sep="\n")


@app.command()
def show(session: Conversation, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Show a conversation, and the places at which it can be taken up again."""
    config = load({"bank_dir": bank_dir})
    with kept_in(config, only_looks=True) as kept:
        found = chosen(kept.all(), session)
    with looking(config.bank_path) as tier:
        marks = [mark for mark in tier.index.marks() if (mark.tenant, mark.session) == (found.tenant, found.id)]
    if as_json:
        typer.echo(json.dumps({**asdict(found), "marks": [described(mark) for mark in marks]}))
    else:
        lines = [f"{name:<14} {value}" for name, value in shown(found).items()]
        Console(highlight=False).print(*lines, places(marks), sep="\n")


@app.command()
def pin(session: Conversation, bank_dir: BankDir = None) -> None:
    """Keep a conversation on disk, whatever else needs the room."""
    change(session, bank_dir, is_pinned=True)


@app.command()
def unpin(session: Conversation, bank_dir: BankDir = None) -> None:
    """Let a conversation go like any other when room is short."""
    change(session, bank_dir, is_pinned=False)


@app.command()
def name(session: Conversation, name: Name, bank_dir: BankDir = None) -> None:
    """Give a conversation a name. Requests call it by its id all the same."""
    change(session, bank_dir, name=name)


@app.command()
def fork(session: Conversation, new: NewId = None, name: GivenName = "", bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Let a second conversation begin as one is now. Requests that name its id go on in it; nothing is copied."""
    with kept_in(load({"bank_dir": bank_dir}), only_looks=False) as kept:
        made = kept.fork(chosen(kept.all(), session), fork_id=new, name=name)
    typer.echo(json.dumps(asdict(made)) if as_json else called(made))


@app.command()
def wipe(bank_dir: BankDir = None, yes: Yes = False) -> None:
    """Remove all conversations: of a folder that no server holds, or else all of the API key's owner."""
    config = load({"bank_dir": bank_dir})
    with kept_in(config, only_looks=False) as kept:
        confirm(f"Remove all that is kept in {config.bank_path} ({counted(len(kept.all()), 'conversation')})?", yes)
        num_removed = kept.wipe()
    typer.echo(f"{counted(num_removed, 'conversation')} removed")


@app.command()
def rm(session: Conversation, bank_dir: BankDir = None, yes: Yes = False) -> None:
    """Remove a conversation, and all of it that no other one needs."""
    with kept_in(load({"bank_dir": bank_dir}), only_looks=False) as kept:
        found = chosen(kept.all(), session)
        confirm(f"Remove {called(found)} ({counted(found.turns, 'turn')}, {counted(found.tokens, 'token')})?", yes)
        kept.remove(found)
    typer.echo(f"{called(found)} is removed")


def change(session: str, bank_dir: Path | None, *, name: str | None = None, is_pinned: bool | None = None) -> None:
    """Change what is said of a conversation; None: as it was."""
    with kept_in(load({"bank_dir": bank_dir}), only_looks=False) as kept:
        after = kept.mark(chosen(kept.all(), session), name=name, is_pinned=is_pinned)
    typer.echo(f"{called(after)} is {'pinned' if after.pinned else 'not pinned'}")


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal. Raises ForerunError if nobody agrees, or nobody can be asked."""
    if yes or (sys.stdin.isatty() and typer.confirm(question, err=True)):
        return
    raise ForerunError("nothing was removed", hint="--yes removes without asking")


@app.command()
def verify(bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Read every record and check every byte of it; exit code 1 if one is damaged."""
    with looking(load({"bank_dir": bank_dir}).bank_path) as tier:
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
    rest = f"the other {report.computed_tokens:,} are new" if report.computed_tokens else "nothing had to be read"
    lines.append(report.reason or f"that is all that is stored of this prompt: {rest}")
    if report.miss and report.miss.where:
        lines.append(f"the first token that differs is number {report.miss.at_token:,}, in {report.miss.place}")
    if report.miss and (report.miss.prompt_text or report.miss.stored_text):
        lines += [f"  prompt  {report.miss.prompt_text!r}", f"  stored  {report.miss.stored_text!r}"]
    return lines


@app.command()
def prune(to_bytes: ToBytes, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Remove what was not used for longest, until the folder is no larger than this."""
    limit_bytes = size(to_bytes)
    folder = load({"bank_dir": bank_dir}).bank_path
    try:
        with holding(folder) as tier:
            removed = list(shrink(tier, limit_bytes))
            figures = {"removed": len(removed), "bytes": tier.num_bytes}
    except BankLockedError as error:
        raise BankLockedError(str(error), hint="stop that server first; the other commands work beside it") from error
    typer.echo(json.dumps(figures) if as_json else f"{counted(figures['removed'], 'record')} removed, {decimal(figures['bytes'])} left")


def shrink(tier: DiskTier, limit_bytes: int) -> Iterator[str]:
    """Delete records, those first that were not used for longest, until the tier fits or only pinned conversations are left; their keys."""
    tier.clear_quarantine()
    pinned = usable_keys(tier.index, tier.index.pinned_sessions())
    while tier.num_bytes > limit_bytes and (lowest := tier.index.lowest(1, pinned)):
        tier.delete(lowest[0].info.key)
        tier.index.note_lost([lowest[0].info], "evicted", "`forerun bank prune` removed it", time.time())
        yield lowest[0].info.key


def table(sessions: list[SessionInfo]) -> Table:
    """One row a conversation; whose it is where there are several owners."""
    has_owners = any(session.tenant for session in sessions)
    drawn = Table("id", *(["owner"] if has_owners else []), "name", "turns", "tokens", "on disk", "in RAM", "last used", "state", box=None)
    for each in sessions:
        sizes = str(each.turns), f"{each.tokens:,}", decimal(each.disk_bytes), decimal(each.ram_bytes)
        state = f"{each.state}{', pinned' * each.pinned}"
        drawn.add_row(each.id, *([each.tenant] if has_owners else []), each.name, *sizes, moment(each.last_used_unix_s), state)
    return drawn


def places(marks: list[Entry]) -> Table:
    """One row a mark."""
    drawn = Table("place", "tokens", "bytes", "last used", "uses", box=None)
    for mark in marks:
        sizes = f"{mark.info.stop:,}", decimal(mark.info.num_bytes)
        drawn.add_row(mark.info.key[:12], *sizes, moment(mark.used_s), str(mark.uses))
    return drawn


def summary(sessions: list[SessionInfo], total: dict[str, int]) -> str:
    """What the folder holds, in one line."""
    kept = f"{counted(len(sessions), 'conversation')}, {counted(total['records'], 'record')}"
    size = f"{decimal(total['bytes'])} in all, {decimal(total['written_today_bytes'])} written today"
    return f"{kept}, {size}, {total['quarantined']} set aside as damaged"


def shown(session: SessionInfo) -> dict[str, Any]:
    """A conversation for people; what is empty is left out."""
    told = asdict(session) | {"ram_bytes": decimal(session.ram_bytes), "disk_bytes": decimal(session.disk_bytes)}
    told["last_used"] = moment(told.pop("last_used_unix_s"))
    return {name.removesuffix("_bytes"): value for name, value in told.items() if value != ""}


def called(session: SessionInfo) -> str:
    """Its id, and its name if it has one."""
    return f"{session.id} ({session.name})" if session.name else session.id


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
