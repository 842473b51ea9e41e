"""The conversations of a bank's folder, for the commands that look after them: asked of the server that holds the folder, or else, when
none does, read and changed in place. Knows no command and no terminal.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forerun.bank import stored
from forerun.bank.disk import UNLIMITED_BYTES, DiskTier
from forerun.bank.index import Index
from forerun.config import Config
from forerun.errors import BankLockedError, ForerunError
from forerun.request_log.file import rewrite
from forerun.request_log.forget import without_texts
from forerun.serve.client import RemoteSessions
from forerun.values import SessionInfo

RECONCILE_S = 600.0


class Kept(Protocol):
    """The conversations of a folder."""

    def all(self) -> list[SessionInfo]:
        """The last used first."""

    def mark(self, session: SessionInfo, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        """Call it so, pin it or not; None: as it was."""

    def fork(self, session: SessionInfo, *, fork_id: str | None, name: str) -> SessionInfo:
        """Let a second conversation begin as this one is now. fork_id None: it is given one."""

    def remove(self, session: SessionInfo) -> None:
        """Remove it, and what no other conversation needs."""

    def wipe(self) -> int:
        """Remove all. Returns the number of conversations."""


@dataclass(frozen=True, slots=True)
class StoredSessions:
    """Those of a folder that no server holds: of every key's owner. log: of the requests."""

    tier: DiskTier
    log: Path

    def all(self) -> list[SessionInfo]:
        return [stored.told(self.tier.index, session) for session in self.tier.index.all_sessions()]

    def mark(self, session: SessionInfo, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        self.tier.index.mark_session(session.tenant, session.id, name=name, is_pinned=is_pinned)
        return self._one(session.tenant, session.id)

    def fork(self, session: SessionInfo, *, fork_id: str | None, name: str) -> SessionInfo:
        (whole,), fork_id = [self.tier.index.session(session.tenant, session.id)], fork_id or secrets.token_hex(6)
        assert whole
        stored.fork(self.tier.index, whole, fork_id, name, time.time())
        return self._one(session.tenant, fork_id)

    def remove(self, session: SessionInfo) -> None:
        removed = stored.remove(self.tier, session.tenant, session.id, ())
        self.tier.scrub([info.key for info in removed])
        rewrite(self.log, lambda line: without_texts(line, {session.tenant}.__contains__, {session.id}.__contains__))

    def wipe(self) -> int:
        num_sessions = len(self.all())
        removed = stored.wipe_all(self.tier)
        self.tier.scrub([info.key for info in removed])
        rewrite(self.log, lambda line: without_texts(line, lambda _: True, lambda _: True))
        return num_sessions

    def _one(self, tenant: str, id: str) -> SessionInfo:
        session = self.tier.index.session(tenant, id)
        assert session
        return stored.told(self.tier.index, session)


@contextmanager
def looking(folder: Path) -> Iterator[DiskTier]:
    """The tier of the folder, for looking only. Raises BankError if nothing is there."""
    tier = DiskTier.view(folder)
    try:
        yield tier
    finally:
        tier.close()


@contextmanager
def holding(folder: Path) -> Iterator[DiskTier]:
    """The tier of the folder, for this process alone. Raises BankLockedError, ForerunError."""
    tier = DiskTier(folder, limit_bytes=UNLIMITED_BYTES, daily_limit_bytes=UNLIMITED_BYTES, index=held(folder))
    try:
        tier.wait_until_reconciled(RECONCILE_S)
        yield tier
    finally:
        tier.close()


def held(folder: Path) -> Index:
    """The index of a folder that is there, for this process alone. Raises BankError, ForerunError."""
    if not folder.is_dir() or not any(folder.iterdir()):
        what = "nothing is stored in" if folder.is_dir() else "there is no folder"
        raise ForerunError(f"{what} {folder}", hint="name the folder with --bank-dir")
    return Index.hold(folder)


@contextmanager
def kept_in(config: Config, *, only_looks: bool) -> Iterator[Kept]:
    """The conversations of the folder of these settings. Raises ForerunError."""
    server = Index.holder(config.bank_path)
    if server is not None:
        yield _remote(server, config)
        return
    with (looking if only_looks else holding)(config.bank_path) as tier:
        yield StoredSessions(tier, config.request_log_path)


def _remote(url: str, config: Config) -> RemoteSessions:
    if not url:
        raise BankLockedError(f"{config.bank_path} is in use, but no server answers for it yet", hint="try again in a moment")
    return RemoteSessions(url, config.api_key.get_secret_value() if config.api_key else "")


def chosen(sessions: list[SessionInfo], word: str) -> SessionInfo:
    """The one that is meant: by its id (or OWNER/ID), its name, or as much of the id as is unique. Raises ForerunError."""
    ways = (
        lambda s: word in (s.id, f"{s.tenant}/{s.id}"),
        lambda s: s.name == word,
        lambda s: s.id.startswith(word),
    )
    found = next((found for way in ways if (found := [each for each in sessions if way(each)])), [])
    if len(found) != 1:
        several = f"{len(found)} conversations are meant by {word!r}: {', '.join(f'{s.tenant}/{s.id}' for s in found[:5])}"
        raise ForerunError(several if found else f"there is no conversation {word!r}", hint="`forerun bank ls` lists them")
    return found[0]
