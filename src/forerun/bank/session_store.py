"""The bank's conversations as objects, wherever they are: listed, named, pinned, removed.

Runs on the thread that owns MLX while no request runs, but for `all` and `one`. Knows nothing of prompts or of how state is restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from forerun.bank import stored, transfer
from forerun.bank.archive import Archive
from forerun.bank.live import LiveConversation
from forerun.bank.ram import Ram
from forerun.bank.restore import new_session
from forerun.bank.saver import DiskSaver
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import Index
from forerun.errors import BadRequestError, BankError, UnknownSessionError
from forerun.state.record import PrefixHasher
from forerun.values import SessionInfo

_FLUSH_S = 30.0
_ALL = -1  # as SQLite has it


class SessionStore:
    """Conversations of one bank. saving is None if nothing survives the process. chain_of: a tenant."""

    def __init__(self, ram: Ram, saver: DiskSaver | None, chain_of: Callable[[str], PrefixHasher]) -> None:
        self._live, self._memory, self._saver, self._chain_of = ram.live, ram.memory, saver, chain_of

    def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        """The tenant's, the last used first, `limit` at most. May be called from any thread."""
        found = [session for id in self._ids(tenant, limit) if (session := self._find(tenant, id))]
        return [self._info(session) for session in sorted(found, key=lambda s: -s.used_s)[:limit]]

    def one(self, tenant: str, id: str) -> SessionInfo:
        """One of the tenant's. Raises UnknownSessionError. May be called from any thread."""
        session = self._find(tenant, id)
        if session is None:
            raise UnknownSessionError(id)
        return self._info(session)

    def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        """Have it called `name`, and pinned or not; None: as it was. What of it is pending is written first. Raises UnknownSessionError,
        BadRequestError.
        """
        self._settled(tenant, id).index.update_session(tenant, id, name=name, is_pinned=is_pinned)
        return self.one(tenant, id)

    def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        """Let a second conversation begin as this one is now; both go on for themselves. fork_id None: the bank gives it one. Raises
        UnknownSessionError, BadRequestError.
        """
        (disk, session), fork_id = self.written(tenant, id), fork_id or new_session()
        stored.fork(disk.index, session, fork_id, name, time.time())
        return self.one(tenant, fork_id)

    def written(self, tenant: str, id: str) -> tuple[DiskTier, Session]:
        """The disk and what the index knows of the conversation, when all of it is there that can be. Raises UnknownSessionError,
        BadRequestError.
        """
        disk = self._settled(tenant, id)
        session = disk.index.session(tenant, id)
        if session is None:
            raise UnknownSessionError(id)
        return disk, session

    def check_new(self, tenant: str, id: str, archive: Archive) -> None:
        """Raises BadRequestError if an archive's conversation cannot be kept under this id: there is one, nothing is kept on disk, or its
        tokens are of another tokenizer. May be called from any thread.
        """
        if archive.manifest.identity.tokenizer != self._chain_of(tenant).identity.tokenizer:
            raise BadRequestError("the archive's tokens are of another tokenizer", hint="serve the model that it was exported from")
        self._with_disk()
        if self._find(tenant, id):
            raise stored.id_taken(id)

    def refusal(self, archive: Archive, key: bytes) -> str:
        """Why an archive's state cannot be taken as it is, "" if it can."""
        if not archive.manifest.parts:
            return "it holds no state"
        if not archive.manifest.is_signed_by(key):
            return "it is not signed by this server's key"
        differing = self._chain_of("").identity.differing(archive.manifest.identity)
        return f"its state is of another model: {' and '.join(differing)} differ" if differing else ""

    def take(self, tenant: str, id: str, archive: Archive) -> SessionInfo:
        """Keep an archive's conversation under this id, with its state as it is. Raises BadRequestError."""
        self.check_new(tenant, id, archive)
        self._flush()
        transfer.keep(self._with_disk().room, archive, self._chain_of(tenant), tenant, id, time.time())
        return self.one(tenant, id)

    def announce(self, address: str) -> None:
        """Have the folder say where its server answers."""
        if self._saver:
            self._saver.disk.announce(address)

    def remove(self, tenant: str, id: str) -> None:
        """Remove a conversation, and all that no other needs, from RAM and disk. Raises UnknownSessionError, BankError."""
        self.one(tenant, id)
        self._drop(self._live.of(tenant, id))
        others = {key for live in self._live if live.unannounced for key in live.unannounced.keys}
        stored.remove(self._memory, tenant, id, others)
        self._memory.index.scrub()
        if self._saver:
            removed = stored.remove(self._saver.disk, tenant, id, others)
            self._saver.disk.scrub([info.key for info in removed])

    def wipe(self, tenant: str) -> int:
        """Remove all that the tenant has here. Returns the number of conversations. Raises BankError: do it again then."""
        num_sessions = len(self._ids(tenant, _ALL))
        self._drop([live for live in self._live if live.tenant == tenant])
        root = self._chain_of(tenant).root
        stored.wipe(self._memory, tenant, [root])
        self._memory.index.scrub()
        if self._saver:
            removed = stored.wipe(self._saver.disk, tenant, [root])
            self._saver.forget_root(root)
            self._saver.disk.scrub([info.key for info in removed])
        return num_sessions

    def _drop(self, alive: Sequence[LiveConversation]) -> None:
        """Let go of live conversations; nothing of them is pending afterwards."""
        for live in alive:
            self._live.remove(live)
        self._flush()

    def _ids(self, tenant: str, limit: int) -> set[str]:
        """Of the tenant's conversations; `limit` at least, the last used first, if there are as many."""
        indexes = [self._memory.index, *([self._saver.disk.index] if self._saver else [])]
        ids = {session.id for index in indexes for session in index.sessions_of(tenant, limit)}
        return ids | {session.id for session in self._intermediate() if session.tenant == tenant}

    def _find(self, tenant: str, id: str) -> Session | None:
        """The conversation as it is now: a live one has gone on since the index was told of it."""
        written = self._saver.disk.index.session(tenant, id) if self._saver else None
        here = [session for session in self._intermediate() if (session.tenant, session.id) == (tenant, id)]
        found = here[-1] if here else self._memory.index.session(tenant, id) or written
        return replace(found, name=written.name, is_pinned=written.is_pinned) if found and written else found

    def _intermediate(self) -> list[Session]:
        """Conversations of which the index need not know yet, as it was or will be told of them; the latest last."""
        return [*(self._saver.writer.noting() if self._saver else ()), *(live.unannounced or live.session_of(()) for live in self._live)]

    def _info(self, session: Session) -> SessionInfo:
        alive, in_ram = self._live.of(session.tenant, session.id), self._memory.index.session(session.tenant, session.id)
        records = self._memory.index.find(in_ram.keys).values() if in_ram else ()
        ram_bytes = sum(x.num_bytes for x in alive) + sum(info.num_bytes for info in records)
        if self._saver is None:
            info = stored.session_info(self._memory.index, session)
            return replace(info, ram_bytes=ram_bytes, disk_bytes=0, stored_tokens=0, state="ram", reason="")
        is_writing = self._is_writing(alive, session)  # before the index is asked: what is written in between is told of as it is
        info = replace(stored.session_info(self._saver.disk.index, session), ram_bytes=ram_bytes)
        if is_writing:
            return replace(info, state="writing", reason="")
        return replace(info, reason=_skip_reason(self._saver.disk.index, alive) or info.reason) if info.state == "skipped" else info

    def _is_writing(self, alive: list[LiveConversation], session: Session) -> bool:
        if any(live.pending for live in alive):  # first: from there it passes to the writer
            return True
        waiting = {record.key for record in self._saver.writer.waiting()} if self._saver else set()
        return not waiting.isdisjoint(session.keys)

    def _with_disk(self) -> DiskSaver:
        """Raises BadRequestError where nothing is kept on disk."""
        if self._saver is None:
            raise BadRequestError("nothing is kept on disk, where names and pins are", hint="start the server without --bank-disk-bytes 0")
        return self._saver

    def _settled(self, tenant: str, id: str) -> DiskTier:
        """The disk, when all is written there that is to be known of the conversation. Raises UnknownSessionError, BadRequestError."""
        self.one(tenant, id)
        saver = self._with_disk()
        for live in self._live.of(tenant, id):
            saver.capture_all(live)
        self._flush()
        return saver.disk

    def _flush(self) -> None:
        if self._saver and not self._saver.writer.flush(_FLUSH_S):
            raise BankError(f"the disk has not written in {_FLUSH_S:.0f} s what waits for it", hint="try again later")


def _skip_reason(index: Index, alive: list[LiveConversation]) -> str:
    """Why the end of a live conversation is not on disk, "" if that is not known."""
    places = [(live, depth) for live in alive for depth in reversed(range(len(live.nodes)))]
    lost = (index.lost(live.nodes[depth], live.block(depth)) for live, depth in places)
    return next((f"{each.kind}: {each.reason}" for each in lost if each), "")
