"""The commands of `forerun bank` that look after single conversations: by the server that holds the folder, or else in place.

Needs no model and no MLX.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from forerun.bank.tier.index import Entry
from forerun.cli.session_access import chosen, kept_in, looking
from forerun.config import load
from forerun.errors import ForerunError
from forerun.values import SESSION_ID, SessionInfo


def _checked(id: str | None) -> str | None:
    if id is not None and not re.match(SESSION_ID, id):
        raise typer.BadParameter("dots alone, and control characters, are no id")
    return id


BankDir = Annotated[Path | None, typer.Option(help="folder of stored conversations; that of the settings if not given", show_default=False)]
Conversation = Annotated[str, typer.Argument(metavar="SESSION", help="a conversation's id, its name, or as much of the id as is unique")]
Name = Annotated[str, typer.Argument(help='its name for people; "" takes it away')]

NEW_ID_HELP = "id of the new conversation; the bank gives it one if not given"
NewId = Annotated[str | None, typer.Argument(help=NEW_ID_HELP, show_default=False, callback=_checked)]
GivenName = Annotated[str, typer.Option("--name", help="its name for people", show_default=False)]
ArchiveFile = Annotated[Path, typer.Argument(help="the archive")]
WithState = Annotated[bool, typer.Option("--state", help="what the model remembers, too")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def ls(bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """List the conversations that are kept, the last used first."""
    config = load({"bank_dir": bank_dir})
    with kept_in(config, only_looks=True) as kept:
        sessions = kept.all()
    with looking(config.bank_path) as tier:
        total = {"records": len(tier.index.inventory()), "bytes": tier.num_bytes, "quarantined": tier.quarantined}
        total |= {"written_today_bytes": tier.written_today_bytes}
    if as_json:
        typer.echo(json.dumps({"sessions": [asdict(session) for session in sessions], **total}))
    else:
        Console(highlight=False).print(table(sessions, time.time()), summary(sessions, total), sep="\n")


def show(session: Conversation, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Show a conversation, and the places at which it can be taken up again."""
    config = load({"bank_dir": bank_dir})
    with kept_in(config, only_looks=True) as kept:
        found = chosen(kept.all(), session)
    with looking(config.bank_path) as tier:
        snapshots = [update for update in tier.index.snapshots() if (update.tenant, update.session) == (found.tenant, found.id)]
    if as_json:
        typer.echo(json.dumps({**asdict(found), "marks": [described(update) for update in snapshots]}))
    else:
        lines = [f"{name:<14} {value}" for name, value in shown(found).items()]
        Console(highlight=False).print(*lines, places(snapshots), sep="\n")


def pin(session: Conversation, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Keep a conversation on disk, whatever else needs the room."""
    after = change(session, bank_dir, is_pinned=True)
    typer.echo(json.dumps(asdict(after)) if as_json else f"{called(after)} is pinned")


def unpin(session: Conversation, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Let a conversation go like any other when room is short."""
    after = change(session, bank_dir, is_pinned=False)
    typer.echo(json.dumps(asdict(after)) if as_json else f"{called(after)} is not pinned")


def name(session: Conversation, name: Name, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Give a conversation a name. Requests call it by its id all the same."""
    after = change(session, bank_dir, name=name)
    said = f"{after.id} is called {after.name!r} now" if after.name else f"{after.id} has no name now"
    typer.echo(json.dumps(asdict(after)) if as_json else said)


def fork(session: Conversation, new: NewId = None, name: GivenName = "", bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Let a second conversation begin as one is now. Requests that name its id go on in it; nothing is copied."""
    with kept_in(load({"bank_dir": bank_dir}), only_looks=False) as kept:
        source = chosen(kept.all(), session)
        made = kept.fork(source, fork_id=new, name=name)
    typer.echo(json.dumps(asdict(made)) if as_json else f"{called(source)} goes on by itself, and in {called(made)}")


def export(session: Conversation, file: ArchiveFile, state: WithState = False, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Write a conversation into an archive: its token ids, and with --state what the model remembers, which needs archive_key_file."""
    with kept_in(load({"bank_dir": bank_dir}), only_looks=True) as kept:
        chunks = kept.export(chosen(kept.all(), session), with_state=state)
        with written(file) as stream:
            stream.writelines(chunks)
    num_bytes = file.stat().st_size
    typer.echo(json.dumps({"file": str(file), "bytes": num_bytes}) if as_json else f"{file} holds it: {decimal(num_bytes)}")


def import_(file: ArchiveFile, new: NewId = None, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Keep the conversation of an archive. Its state is taken as it is if the key in archive_key_file has signed it, else read anew."""
    with kept_in(load({"bank_dir": bank_dir}), only_looks=False) as kept, opened(file) as stream:
        made = kept.load(stream, id=new)
    how = "its state is taken as it is" if made.state == "imported" else f"its tokens were read anew: {made.reason}"
    typer.echo(json.dumps(asdict(made)) if as_json else f"{called(made.session)} is kept; {how}")


@contextmanager
def written(file: Path) -> Iterator[BinaryIO]:
    """A new file, for its owner alone; nothing of it stays if the block fails. Raises ForerunError if there is one already."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ForerunError(f"cannot write {file}: {error.strerror}", hint="name a file that is not there yet") from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
    except BaseException:
        file.unlink()
        raise


def opened(file: Path) -> BinaryIO:
    """A file to be read. Raises ForerunError."""
    try:
        return file.open("rb")
    except OSError as error:
        raise ForerunError(f"cannot read {file}: {error.strerror}") from error


def wipe(bank_dir: BankDir = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove all conversations: of a folder that no server holds, or else all of the API key's owner."""
    config = load({"bank_dir": bank_dir})
    with kept_in(config, only_looks=False) as kept:
        confirm(f"Remove all that is kept in {config.bank_path} ({counted(len(kept.all()), 'conversation')})?", yes)
        num_removed = kept.wipe()
    typer.echo(json.dumps({"removed": num_removed}) if as_json else f"{counted(num_removed, 'conversation')} removed")


def rm(session: Conversation, bank_dir: BankDir = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a conversation, and all of it that no other one needs."""
    with kept_in(load({"bank_dir": bank_dir}), only_looks=False) as kept:
        found = chosen(kept.all(), session)
        confirm(f"Remove {called(found)} ({counted(found.turns, 'turn')}, {counted(found.tokens, 'token')})?", yes)
        kept.remove(found)
    typer.echo(json.dumps({"removed": found.id}) if as_json else f"{called(found)} is removed")


def change(session: str, bank_dir: Path | None, *, name: str | None = None, is_pinned: bool | None = None) -> SessionInfo:
    """Change what is said of a conversation; None: as it was. Returns it as it is then."""
    with kept_in(load({"bank_dir": bank_dir}), only_looks=False) as kept:
        return kept.update(chosen(kept.all(), session), name=name, is_pinned=is_pinned)


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal. Raises ForerunError if nobody agrees, or nobody can be asked."""
    if yes or (sys.stdin.isatty() and typer.confirm(question, err=True)):
        return
    raise ForerunError("nothing was removed", hint="--yes removes without asking")


def table(sessions: list[SessionInfo], now_s: float) -> Table:
    """One row a conversation; whose it is where there are several owners. Ids are whole on any screen: other commands take them."""
    has_owners = any(session.tenant for session in sessions)
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("id", *(["owner"] if has_owners else []), "name", "turns", "tokens", "on disk", "in RAM", "last used", "state"):
        drawn.add_column(column, overflow="fold", no_wrap=column != "name")
    for each in sessions:
        sizes = str(each.turns), f"{each.tokens:,}", decimal(each.disk_bytes), decimal(each.ram_bytes)
        state = f"{each.state}{', pinned' * each.pinned}"
        drawn.add_row(each.id, *([each.tenant] if has_owners else []), each.name, *sizes, ago(now_s - each.last_used_unix_s), state)
    return drawn


def places(snapshots: list[Entry]) -> Table:
    """One row a mark."""
    drawn = Table("place", "tokens", "bytes", "last used", "uses", box=None)
    for update in sorted(snapshots, key=lambda update: update.info.stop):
        sizes = f"{update.info.stop:,}", decimal(update.info.num_bytes)
        drawn.add_row(update.info.key[:12], *sizes, moment(update.used_s), str(update.uses))
    return drawn


def summary(sessions: list[SessionInfo], total: dict[str, int]) -> str:
    """What the folder holds, in one line."""
    kept = f"{counted(len(sessions), 'conversation')}, {counted(total['records'], 'record')}"
    size = f"{decimal(total['bytes'])} in all, {decimal(total['written_today_bytes'])} written today"
    return f"{kept}, {size}" + (f", {total['quarantined']} set aside as damaged" if total["quarantined"] else "")


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


def ago(passed_s: float) -> str:
    """How long ago something was, for people: "now", "5 min ago", "3 days ago"."""
    units = ((timedelta(days=1), "day"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min"))
    for unit, name in units:
        if (number := int(passed_s // unit.total_seconds())) > 0:
            return f"{number} {name}{'s' * (name == 'day' and number > 1)} ago"
    return "now"


def moment(unix_s: float) -> str:
    """A moment in UTC, ISO 8601."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
