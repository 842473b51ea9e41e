"""Access to the conversations of a bank's folder, for `forerun bank`: through the server that holds the folder, otherwise in place.

Knows no command and no terminal.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from forerun.bank import stored
from forerun.bank.archive import Archive
from forerun.bank.eviction import EvictingDisk
from forerun.bank.protection import Protections
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, holder, secret
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import Index
from forerun.bank.transfer import keep, pack
from forerun.config import Config
from forerun.engine.engine import ALL_TENANTS, Sessions
from forerun.errors import BankLockedError, ForerunError, UnknownSessionError
from forerun.request_log.file import rewrite
from forerun.request_log.forget import without_texts
from forerun.serve.remote import RemoteSessions
from forerun.state.record import PrefixHasher, RecordInfo
from forerun.values import ImportResult, SessionInfo

T = TypeVar("T")
RECONCILE_S = 600.0


@dataclass(frozen=True, slots=True)
class FolderSessions:
    """`Sessions` of a folder that no server holds, of any tenant, for a command: its coroutines block. log: of the requests. archive_key:
    signs archives.
    """

    tier: DiskTier
    folder: Path
    log: Path
    archive_key: bytes

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        sessions = [each for each in self.tier.index.all_sessions() if tenant in (ALL_TENANTS, each.tenant)]
        return [stored.session_info(self.tier.index, session) for session in sessions[:limit]]

    async def one(self, tenant: str, id: str) -> SessionInfo:
        return stored.session_info(self.tier.index, self._session(tenant, id))

    async def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        self.tier.index.update_session(tenant, id, name=name, is_pinned=is_pinned)
        return await self.one(tenant, id)

    async def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        fork_id = fork_id or secrets.token_hex(6)
        stored.fork(self.tier.index, self._session(tenant, id), fork_id, name, time.time())
        return await self.one(tenant, fork_id)

    async def remove(self, tenant: str, id: str) -> None:
        self._forget(stored.remove(self.tier, tenant, id, ()), tenant, {id}.__contains__)

    async def export(self, tenant: str, id: str, *, with_state: bool) -> Iterator[bytes | memoryview]:
        return pack(self.tier, self._session(tenant, id), self.archive_key, with_state=with_state)

    async def load(self, tenant: str, archive: BinaryIO, *, id: str | None) -> ImportResult:
        read = Archive.read(archive)
        id, manifest = id or read.manifest.id, read.manifest
        if not manifest.parts or not manifest.is_signed_by(self.archive_key):
            reason = "it holds no state" if not manifest.parts else "it is not signed by the key in archive_key_file"
            raise ForerunError(f"no model runs here to compute the archive's state, and {reason}", hint="start the server, and try again")
        if self.tier.index.session(tenant, id):
            raise stored.id_taken(id)
        hasher = PrefixHasher(secret(self.folder), tenant, manifest.identity)
        keep(EvictingDisk(self.tier, lambda: (), Protections()), read, hasher, tenant, id, time.time(), lambda: None)
        return ImportResult(await self.one(tenant, id), "imported", "")

    async def wipe(self, tenant: str) -> int:
        num_sessions = len(await self.all(tenant, sys.maxsize))
        removed = stored.wipe_all(self.tier) if tenant == ALL_TENANTS else stored.wipe(self.tier, tenant, ())
        self._forget(removed, tenant, lambda _: True)
        return num_sessions

    def _forget(self, removed: list[RecordInfo], tenant: str, is_gone: Callable[[str], bool]) -> None:
        """Overwrite the removed records on disk, and remove the texts of their conversations from the log."""
        self.tier.scrub([info.key for info in removed])
        rewrite(self.log, lambda line: without_texts(line, lambda owner: tenant in (ALL_TENANTS, owner), is_gone))

    def _session(self, tenant: str, id: str) -> Session:
        session = self.tier.index.session(tenant, id)
        if session is None:
            raise UnknownSessionError(id)
        return session


def open_read_only(folder: Path) -> closing[DiskTier]:
    """The tier of the folder, read-only. Raises BankError if there is none."""
    return closing(DiskTier.view(folder))


@contextmanager
def open_for_changes(config: Config) -> Iterator[DiskTier]:
    """The tier of the settings' folder, within their limits, locked for this process. Raises BankLockedError, ForerunError."""
    with closing(DiskTier.of(config, _hold(config.bank_path))) as tier:
        tier.wait_until_reconciled(RECONCILE_S)
        yield tier


def _hold(folder: Path) -> Index:
    """The index of an existing folder, locked for this process. Raises BankError, ForerunError."""
    if not folder.is_dir() or not any(folder.iterdir()):
        what = "nothing is stored in" if folder.is_dir() else "there is no folder"
        raise ForerunError(f"{what} {folder}", hint="name the folder with --bank-dir; `forerun serve` creates it")
    return hold(folder)


def run(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that blocks and never awaits: without an event loop, which would swallow the first Ctrl-C."""
    try:
        call.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("it awaits something")


@contextmanager
def sessions_of(config: Config, *, is_read_only: bool) -> Iterator[Sessions]:
    """The conversations of the folder of these settings. Raises ForerunError."""
    server = holder(config.bank_path)
    if server is not None:
        yield _remote(server, config)
        return
    with open_read_only(config.bank_path) if is_read_only else open_for_changes(config) as tier:
        yield FolderSessions(tier, config.bank_path, config.request_log_path, config.archive_key)


def _remote(url: str, config: Config) -> RemoteSessions:
    if not url:
        raise BankLockedError(f"{config.bank_path} is in use, but its server does not answer yet", hint="try again in a moment")
    return RemoteSessions(url, config.sent_key)


def chosen(sessions: list[SessionInfo], word: str) -> SessionInfo:
    """The conversation with this id (or OWNER/ID), this name, or this unique prefix of the id. Raises ForerunError."""
    variants = (
        lambda s: word in (s.id, f"{s.tenant}/{s.id}"),
        lambda s: s.name == word,
        lambda s: s.id.startswith(word),
    )
    found = next((found for variant in variants if (found := [each for each in sessions if variant(each)])), [])
    if len(found) != 1:
        has_owners = len({s.tenant for s in found}) > 1
        several = f"{len(found)} conversations match {word!r}: {', '.join(has_owners * f'{s.tenant}/' + s.id for s in found[:5])}"
        raise ForerunError(several if found else f"there is no conversation {word!r}", hint="`forerun bank ls` lists them")
    return found[0]
