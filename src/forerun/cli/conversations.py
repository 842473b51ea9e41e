"""The commands of `forerun bank` for single conversations: through the server that holds the folder, otherwise in place.

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
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from forerun.bank.tier.index import Entry
from forerun.cli.lines import AsJson, aligned, answer, borderless
from forerun.cli.session_access import chosen, open_read_only, run, sessions_of
from forerun.config import load
from forerun.engine.engine import ALL_TENANTS, Sessions
from forerun.errors import ForerunError
from forerun.log import SHORT_ID, short_id
from forerun.serve.auth import NO_TENANT
from forerun.text.partial_match import num_common
from forerun.values import SESSION_ID, SessionInfo


def _checked(id: str | None) -> str | None:
    if id is not None and not re.match(SESSION_ID, id):
        raise typer.BadParameter("an id is not only dots, and has no control characters")
    return id


BankDir = Annotated[Path | None, typer.Option(help="folder of stored conversations; default: from the settings", show_default=False)]
Conversation = Annotated[str, typer.Argument(metavar="SESSION", help="a conversation's id, its name, or a unique prefix of the id")]
Name = Annotated[str, typer.Argument(help='its name for people; "" removes it')]

NewId = Annotated[str | None, typer.Argument(help="id of the new conversation; default: generated", show_default=False, callback=_checked)]
ImportId = Annotated[str | None, typer.Argument(help="id to store it under; default: its own", show_default=False, callback=_checked)]
GivenName = Annotated[str, typer.Option("--name", help="its name for people", show_default=False)]
ArchiveFile = Annotated[Path, typer.Argument(help="the archive")]
WithState = Annotated[bool, typer.Option("--state", help="include the model's state")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
WRAPPED = ("title", "client", "owner")  # columns whose text may break
NUMBERS = ("turns", "tokens", "at token", "size", "uses")


def ls(bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """List the stored conversations, most recently used first."""
    config = load({"bank_dir": bank_dir})
    with sessions_of(config, is_read_only=True) as sessions:
        found = listed(sessions)
    with open_read_only(config.bank_path) as tier:
        total = {"records": len(tier.index.inventory()), "bytes": tier.num_bytes, "quarantined": tier.quarantined}
        total |= {"written_today_bytes": tier.written_today_bytes}
    if as_json:
        typer.echo(json.dumps({"sessions": [asdict(session) for session in found], **total}))
    else:
        Console(highlight=False).print(table(found, time.time()), summary(found, total), sep="\n")


def show(session: Conversation, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Show a conversation, and the snapshots from which it can be resumed."""
    config = load({"bank_dir": bank_dir})
    with sessions_of(config, is_read_only=True) as sessions:
        found = chosen(listed(sessions), session)
    with open_read_only(config.bank_path) as tier:
        snapshots = [each for each in tier.index.snapshots() if (each.tenant, each.session) == (found.tenant, found.id)]
    if as_json:
        typer.echo(json.dumps({**asdict(found), "snapshots": [described(each) for each in snapshots]}))
    else:
        console = Console(highlight=False)
        typer.echo("\n".join([*aligned(shown(found, time.time()).items(), console.width), ""]))
        console.print(snapshots_table(snapshots, time.time()))


def pin(session: Conversation, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Exempt a conversation from eviction from disk."""
    after = change(session, bank_dir, is_pinned=True)
    answer(asdict(after), f"{label(after)} is pinned", as_json=as_json)


def unpin(session: Conversation, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Make a conversation subject to eviction again."""
    after = change(session, bank_dir, is_pinned=False)
    answer(asdict(after), f"{label(after)} is not pinned", as_json=as_json)


def name(session: Conversation, name: Name, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Give a conversation a name. Requests still use its id."""
    after = change(session, bank_dir, name=name)
    text = f"{short_id(after.id)} is now called {after.name!r}" if after.name else f"{short_id(after.id)} has no name now"
    answer(asdict(after), text, as_json=as_json)


def fork(session: Conversation, new: NewId = None, name: GivenName = "", bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Start a second conversation from one as it is now. Requests with its id continue it; nothing is copied."""
    with sessions_of(load({"bank_dir": bank_dir}), is_read_only=False) as sessions:
        source = chosen(listed(sessions), session)
        made = run(sessions.fork(source.tenant, source.id, fork_id=new, name=name))
    answer(asdict(made), f"{label(made)} continues {label(source)} from here", as_json=as_json)


def export(session: Conversation, file: ArchiveFile, state: WithState = False, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Write a conversation into an archive: its token ids, and with --state the model's state, which requires archive_key_file."""
    with sessions_of(load({"bank_dir": bank_dir}), is_read_only=True) as sessions:
        source = chosen(listed(sessions), session)
        chunks = run(sessions.export(source.tenant, source.id, with_state=state))
        with written(file) as stream:
            stream.writelines(chunks)
    num_bytes = file.stat().st_size
    answer({"file": str(file), "bytes": num_bytes}, f"{file} written: {decimal(num_bytes)}", as_json=as_json)


def import_(file: ArchiveFile, id: ImportId = None, bank_dir: BankDir = None, as_json: AsJson = False) -> None:
    """Store the conversation of an archive. Its state is used if it is signed with the key in archive_key_file, otherwise recomputed."""
    with sessions_of(load({"bank_dir": bank_dir}), is_read_only=False) as sessions, opened(file) as stream:
        made = run(sessions.load(NO_TENANT, stream, id=id))
    how = "with its state" if made.state == "imported" else f"its state was recomputed: {made.reason}"
    answer(asdict(made), f"{label(made.session)} is stored; {how}", as_json=as_json)


@contextmanager
def written(file: Path) -> Iterator[BinaryIO]:
    """A new file, readable by its owner only, removed if the block fails. Raises ForerunError if it exists already."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ForerunError(f"cannot write {file}: {error.strerror}", hint="name a file that does not exist") from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
    except BaseException:
        file.unlink()
        raise


def opened(file: Path) -> BinaryIO:
    """An existing file, open for reading. Raises ForerunError."""
    try:
        return file.open("rb")
    except OSError as error:
        raise ForerunError(f"cannot read {file}: {error.strerror}") from error


def wipe(bank_dir: BankDir = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove all conversations: of the API key's owner if a server holds the folder, otherwise all in the folder."""
    config = load({"bank_dir": bank_dir})
    with sessions_of(config, is_read_only=False) as sessions:
        confirm(f"Remove everything stored in {config.bank_path} ({counted(len(listed(sessions)), 'conversation')})?", yes)
        num_removed = run(sessions.wipe(ALL_TENANTS))
    answer({"removed": num_removed}, f"{counted(num_removed, 'conversation')} removed", as_json=as_json)


def rm(session: Conversation, bank_dir: BankDir = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a conversation, and its records that no other conversation needs."""
    with sessions_of(load({"bank_dir": bank_dir}), is_read_only=False) as sessions:
        found = chosen(listed(sessions), session)
        confirm(f"Remove {label(found)} ({counted(found.turns, 'turn')}, {counted(found.tokens, 'token')})?", yes)
        run(sessions.remove(found.tenant, found.id))
    answer({"removed": found.id}, f"{label(found)} is removed", as_json=as_json)


def change(session: str, bank_dir: Path | None, *, name: str | None = None, is_pinned: bool | None = None) -> SessionInfo:
    """Change the name or pin of a conversation; None: unchanged. Returns it afterwards."""
    with sessions_of(load({"bank_dir": bank_dir}), is_read_only=False) as sessions:
        found = chosen(listed(sessions), session)
        return run(sessions.update(found.tenant, found.id, name=name, is_pinned=is_pinned))


def listed(sessions: Sessions) -> list[SessionInfo]:
    """All conversations that the caller may see, most recently used first."""
    return run(sessions.all(ALL_TENANTS, sys.maxsize))


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal. Raises ForerunError without consent, or without a terminal."""
    if yes or (sys.stdin.isatty() and typer.confirm(question, err=True)):
        return
    raise ForerunError("nothing was removed", hint="--yes removes without asking")


def table(sessions: list[SessionInfo], now_s: float) -> Table:
    """One row per conversation, with its owner if there are several. Text breaks between words."""
    has_owners = any(session.tenant for session in sessions)
    columns = ("id", *(["owner"] if has_owners else []), "title", "client", "turns", "tokens", "last used", "on disk")
    grid = borderless(columns, numbers=NUMBERS, wrapped=WRAPPED)
    for each, id in zip(sessions, unique_ids([session.id for session in sessions]), strict=True):
        owner = [each.tenant] if has_owners else []
        about = each.name or each.title, each.client, f"{each.turns:,}", f"{each.tokens:,}"
        grid.add_row(*map(escape, (id, *owner, *about)), day(each.last_used_unix_s, now_s), durable(each))
    return grid


def unique_ids(ids: list[str]) -> list[str]:
    """The ids cut to one length; longer only where two would be the same: other commands take what is unique."""
    near = dict[str, int]()
    for one, other in pairwise(sorted(set(ids))):
        near |= {id: max(near.get(id, 0), num_common(one, other)) for id in (one, other)}
    return [id[: max(SHORT_ID, near.get(id, 0) + 1)] for id in ids]


def durable(session: SessionInfo) -> str:
    """How much of a conversation is on disk, in a word or two, and whether it is pinned."""
    frac = session.stored_tokens / session.tokens if session.tokens else 1.0
    states = {"ssd": "all", "writing": "writing", "ram": "RAM only", "skipped": f"{frac:.0%}"}
    return states[session.state] + ", pinned" * session.pinned


def snapshots_table(snapshots: list[Entry], now_s: float) -> Table:
    """One row per snapshot."""
    grid = borderless(("snapshot", "at token", "size", "last used", "uses"), numbers=NUMBERS, wrapped=())
    for each in sorted(snapshots, key=lambda each: each.info.stop):
        sizes = f"{each.info.stop:,}", decimal(each.info.num_bytes)
        grid.add_row(short_id(each.info.key), *sizes, day(each.used_s, now_s), str(each.uses))
    return grid


def summary(sessions: list[SessionInfo], total: dict[str, int]) -> str:
    """The content of the folder, in one line."""
    counts = f"{counted(len(sessions), 'conversation')}, {counted(total['records'], 'record')}"
    size = f"{decimal(total['bytes'])} in total, {decimal(total['written_today_bytes'])} written today"
    return f"{counts}, {size}" + (f", {total['quarantined']} quarantined as damaged" if total["quarantined"] else "")


def shown(session: SessionInfo, now_s: float) -> dict[str, str]:
    """A conversation for people, without what is empty."""
    fields = {
        "id": session.id,
        "name": session.name,
        "title": session.title,
        "owner": session.tenant,
        "client": session.client,
        "length": f"{counted(session.turns, 'turn')}, {counted(session.tokens, 'token')}",
        "last used": f"{local(session.last_used_unix_s):%Y-%m-%d %H:%M}, {ago(now_s - session.last_used_unix_s)}",
        "on disk": f"{on_disk(session)}, {decimal(session.disk_bytes)}",
        "in RAM": decimal(session.ram_bytes) if session.ram_bytes else "",
        "pinned": "yes: it is never evicted from disk" if session.pinned else "",
    }
    return {name: value for name, value in fields.items() if value}


def on_disk(session: SessionInfo) -> str:
    """How much of a conversation survives a crash or a restart, and why not all."""
    partly = f"{session.stored_tokens:,} of {counted(session.tokens, 'token')}"
    states = {"ssd": "all of it", "writing": f"{partly}, the rest is being written", "ram": "nothing: the server stores nothing on disk"}
    return states.get(session.state, f"{partly} ({session.reason})")


def label(session: SessionInfo) -> str:
    """Its id, and its name if it has one."""
    return f"{short_id(session.id)} ({session.name})" if session.name else short_id(session.id)


def counted(number: int, noun: str) -> str:
    """ "1 record", "2 records"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def described(entry: Entry) -> dict[str, Any]:
    """A record for programs: its row in the index, with the span of its tokens instead of the tokens."""
    fields = {**asdict(entry.info), "stop": entry.info.stop}
    del fields["tokens"]
    uses = {"created": moment(entry.created_s), "last_used": moment(entry.used_s), "uses": entry.uses, "session": entry.session}
    return {**fields, **uses}


def ago(passed_s: float) -> str:
    """A duration for people: "now", "5 min ago", "3 days ago"."""
    units = ((timedelta(days=1), "day"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min"))
    for unit, name in units:
        if (number := int(passed_s // unit.total_seconds())) > 0:
            return f"{number} {name}{'s' * (name == 'day' and number > 1)} ago"
    return "now"


def local(unix_s: float) -> datetime:
    """A time on this machine's clock."""
    return datetime.fromtimestamp(unix_s, UTC).astimezone()


def day(unix_s: float, now_s: float) -> str:
    """A date for people: with the time in this year, otherwise with the year."""
    moment = local(unix_s)
    return f"{moment:%d %b %H:%M}" if moment.year == local(now_s).year else f"{moment:%Y-%m-%d}"


def moment(unix_s: float) -> str:
    """A time in UTC, ISO 8601."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
