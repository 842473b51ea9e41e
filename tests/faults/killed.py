"""Kills a process before every call to the disk or to SQLite of a removal or an import: `killed.py ACT FOLDER INTO`.

Prints how many times; the copies of the folder are INTO/0, INTO/1, ... Alone in its process, since it forks.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from tests.faults.failing import CALLS, Connection, Failure
from tests.records import IDENTITY, opened

from forerun.bank import stored
from forerun.bank.archive import Archive
from forerun.bank.eviction import EvictingDisk
from forerun.bank.protection import Protections
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import secret
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import RecordLabel
from forerun.bank.transfer import keep, pack
from forerun.state.record import Kind, PrefixHasher, Record

NAMES = ("mine", "other")


def remove(tier: DiskTier) -> None:
    """Remove one of two conversations."""
    tier.scrub([info.key for info in stored.remove(tier, "", "mine", ())])


def wipe(tier: DiskTier) -> None:
    """Remove all of the owner's."""
    tier.scrub([info.key for info in stored.wipe(tier, "", [])])


def load(tier: DiskTier) -> None:
    """Import a copy of one of them from an archive."""
    session = tier.index.session("", "mine")
    assert session
    archive = Archive.read(BytesIO(b"".join(pack(tier, session, b"key", with_state=True))))
    keep(
        EvictingDisk(tier, lambda: (), Protections()),
        archive,
        PrefixHasher(b"another secret", "", IDENTITY),
        "",
        "again",
        1.0,
        lambda: None,
    )


ACTS: Mapping[str, Callable[[DiskTier], None]] = {"remove": remove, "wipe": wipe, "load": load}
LEFT = {"remove": {"other": 2}, "wipe": {}, "load": {"mine": 2, "other": 2, "again": 2}}  # conversations and their tokens
RECORDS = {"remove": 2, "wipe": 0, "load": 7}


def prepare(folder: Path) -> None:
    """Two conversations, one with a snapshot of an earlier turn, and a record that was set aside."""
    tier, hasher = opened(folder), PrefixHasher(secret(folder), "", IDENTITY)

    def record(kind: Kind, *tokens: int) -> Record:
        return Record.of(hasher.info(kind, hasher.root, 0, tokens), memoryview(bytes(tokens)))

    for number, name in enumerate(NAMES):
        own = [record("segment", 7, number), record("snapshot", 7, number)]
        earlier = [record("snapshot", 7, number, 9)] if name == "mine" else []
        for each in own + earlier:
            tier.put(each)
            tier.index.label(each.info.key, RecordLabel(name, "", 1.0, 1.0))
        tier.index.note_session(Session("", name, "", 1.0, 1, 2, False, tuple(each.info.key for each in own)))
    tier.index.note_identity(hasher.root, "", IDENTITY.fields, 1.0)
    damaged = record("segment", 8)
    tier.put(damaged)
    tier.set_aside(damaged.info.key)
    tier.close()


class Kill(Failure):
    """The call of number `at` never happens, nor anything after it."""

    def watch(self, name: str, call: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return counted


def act_until_killed(act: str, folder: Path, at: int) -> None:
    """In a process of its own: do it, up to call number `at`."""
    tier, kill = opened(folder), Kill(at, "before")
    for name in CALLS:
        mock.patch.object(os, name, kill.watch(name, getattr(os, name), OSError())).start()
    Connection.failure = kill
    ACTS[act](tier)
    os._exit(0)


def main(act: str, model: Path, into: Path) -> int:
    """Returns how many were killed."""
    sqlite3.connect = partial(sqlite3.connect, factory=Connection)
    for at in count():
        shutil.copytree(model, into / str(at))
        child = os.fork()
        if child == 0:
            act_until_killed(act, into / str(at), at)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            return at
    raise AssertionError


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
