"""The bank's conversations, wherever they are stored: list, name, pin, fork, import, remove.

`all` and `one` may be called from any thread at any time; the others from any thread, one at a time, while requests run. What they do to
live conversations runs on the thread that owns MLX, in short calls; nothing waits for the disk there. Knows nothing of prompts or of
restoring state.

A turn that runs or waits while its conversation is removed ends, and is not stored. A fork, a name and an archive are of what is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from forerun.bank import stored, transfer
from forerun.bank.archive import Archive
from forerun.bank.live import LiveConversation, LiveConversations
from forerun.bank.ram import Ram
from forerun.bank.response_store import ResponseStore
from forerun.bank.restore import new_session
from forerun.bank.running_turns import RunningTurns
from forerun.bank.saver import DiskSaver
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import Index
from forerun.errors import BadRequestError, BankError, UnknownSessionError
from forerun.state.record import PrefixHasher, RecordInfo
from forerun.values import SessionInfo

_FLUSH_S = 30.0
_ALL = -1  # SQLite's LIMIT for all rows
T = TypeVar("T")


class OnOwner(Protocol):
    """Runs a call on the thread that owns MLX. Returns what it returns, and raises what it raises."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


class SessionStore:
    """Conversations of one bank. losses: notes in RAM. saver: None without a disk. hasher_of: the hasher of a tenant. forkable: those that
    run. resolve: names the conversations that a tenant's waiting turns would continue. responses: removed with their conversations.
    on_owner: set where others than the owner of MLX call.
    """

    def __init__(
        self,
        ram: Ram,
        losses: Index,
        saver: DiskSaver | None,
        hasher_of: Callable[[str], PrefixHasher],
        running: RunningTurns,
        forkable: LiveConversations,
        resolve: Callable[[str], None],
        responses: ResponseStore,
    ) -> None:
        self._forkable, self._resolve, self._responses = forkable, resolve, responses
        self._live, self._losses, self._saver, self._hasher_of, self._running = ram.live, losses, saver, hasher_of, running
        self.on_owner: OnOwner = _at_once

    def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        """The tenant's conversations, last used first, at most `limit`. May be called from any thread."""
        found = [session for id in self._ids(tenant, limit) if (session := self._find(tenant, id))]
        return [self._info(session) for session in sorted(found, key=lambda s: -s.used_s)[:limit]]

    def one(self, tenant: str, id: str) -> SessionInfo:
        """The tenant's conversation of this id. Raises UnknownSessionError. May be called from any thread."""
        session = self._find(tenant, id)
        if session is None:
            raise UnknownSessionError(id)
        return self._info(session)

    def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        """Set its name and pin; None: unchanged. What is pending of it is written first. Raises UnknownSessionError, BadRequestError."""
        self._flushed(tenant, id).index.update_session(tenant, id, name=name, is_pinned=is_pinned)
        return self.one(tenant, id)

    def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        """Start a second conversation from the current state of this one; they are independent afterwards. fork_id None: a random id.
        Raises UnknownSessionError, BadRequestError.
        """
        (disk, session), fork_id = self.written(tenant, id), fork_id or new_session()
        stored.fork(disk.index, session, fork_id, name, time.time())
        return self.one(tenant, fork_id)

    def written(self, tenant: str, id: str) -> tuple[DiskTier, Session]:
        """The disk and the conversation's row, once all that is pending of it is written. Raises UnknownSessionError, BadRequestError."""
        disk = self._flushed(tenant, id)
        session = disk.index.session(tenant, id)
        if session is None:
            raise UnknownSessionError(id)
        return disk, session

    def check_new(self, tenant: str, id: str, archive: Archive) -> None:
        """Raises BadRequestError if the archive cannot be imported: the id is taken, there is no disk, or the tokenizer differs. May be
        called from any thread.
        """
        if archive.manifest.identity.tokenizer != self._hasher_of(tenant).identity.tokenizer:
            raise BadRequestError("the archive's tokens are of another tokenizer", hint="serve the model that it was exported from")
        self._with_disk()
        if self._find(tenant, id):
            raise stored.id_taken(id)

    def refusal(self, archive: Archive, key: bytes) -> str:
        """Why an archive's state cannot be imported, "" if it can."""
        if not archive.manifest.parts:
            return "it holds no state"
        if not archive.manifest.is_signed_by(key):
            return "it is not signed by this server's key"
        differing = self._hasher_of("").identity.differing(archive.manifest.identity)
        return f"its state is of another model: {' and '.join(differing)} differ" if differing else ""

    def take(self, tenant: str, id: str, archive: Archive, check: Callable[[], object]) -> SessionInfo:
        """Import an archive with its state under this id, wholly or not at all. check: called before each record; what it raises ends the
        import. Raises BadRequestError.
        """
        self.check_new(tenant, id, archive)
        saver = self._with_disk()
        try:
            transfer.keep(saver.evicting, archive, self._hasher_of(tenant), tenant, id, time.time(), check)
        except BaseException:
            self.on_owner(saver.write_again)
            raise
        return self.one(tenant, id)

    def announce(self, address: str) -> None:
        """Write the server's address into the folder's lock file, where commands find it."""
        if self._saver:
            self._saver.disk.announce(address)

    def remove(self, tenant: str, id: str) -> None:
        """Remove a conversation, and its records that no other needs, from RAM and disk. Raises UnknownSessionError, BankError."""
        if not self._running.of(tenant, id):
            self.one(tenant, id)
        with self._running.removing(tenant, id):
            self.on_owner(lambda: self._resolve(tenant))
            with self._running.removing(tenant, id):  # the waiting turns, too, now that their conversations are known
                self._remove(tenant, id)

    def _remove(self, tenant: str, id: str) -> None:
        self.on_owner(lambda: self._drop(lambda live: (live.tenant, live.session) == (tenant, id)))
        self._responses.forget(tenant, id)
        self._losses.scrub()
        self._remove_from_disk(lambda disk: stored.remove(disk, tenant, id, self.on_owner(self._live_keys)))

    def wipe(self, tenant: str) -> int:
        """Remove all of the tenant's conversations and responses. Returns the number of conversations. Raises BankError; then it can be
        repeated.
        """
        num_sessions, root = len(self._ids(tenant, _ALL)), self._hasher_of(tenant).root
        with self._running.removing(tenant, None):
            self.on_owner(lambda: self._drop(lambda live: live.tenant == tenant))
            self._responses.forget(tenant, None)
            self._losses.scrub()
            self._remove_from_disk(lambda disk: stored.wipe(disk, tenant, [root]))
            if self._saver:
                self._saver.forget_root(root)
        return num_sessions

    def _remove_from_disk(self, remove: Callable[[DiskTier], list[RecordInfo]]) -> None:
        """Remove from the disk, once all that was captured before is written; leave no trace there."""
        if self._saver:
            self._flush()
            removed = remove(self._saver.disk)
            self.on_owner(self._saver.write_again)
            self._saver.disk.scrub([info.key for info in removed])

    def _live_keys(self) -> set[str]:
        """Keys of the records that live conversations need."""
        return {key for live in self._live if live.session_row for key in live.session_row.keys}

    def _drop(self, is_due: Callable[[LiveConversation], bool]) -> None:
        """Remove live conversations, with what is pending of them; those that run are not forked any more."""
        for index in (self._live, self._forkable):
            for live in filter(is_due, index):
                index.remove(live)

    def _ids(self, tenant: str, limit: int) -> set[str]:
        """Ids of the tenant's conversations: at least the `limit` last used."""
        ids = {session.id for session in self._saver.disk.index.sessions_of(tenant, limit)} if self._saver else set()
        return ids | {session.id for session in self._newer_than_index() if session.tenant == tenant}

    def _find(self, tenant: str, id: str) -> Session | None:
        """The conversation as it is now: a live one may be newer than its row."""
        written = self._saver.disk.index.session(tenant, id) if self._saver else None
        here = [session for session in self._newer_than_index() if (session.tenant, session.id) == (tenant, id)]
        found = here[-1] if here else written
        title = (written and written.title) or (found.title if found else "")
        return replace(found, name=written.name, is_pinned=written.is_pinned, title=title) if found and written else found

    def _newer_than_index(self) -> list[Session]:
        """Rows of conversations that the index may not have yet, the latest last."""
        return [*(self._saver.writer.noting() if self._saver else ()), *(live.session_row or live.session_of(()) for live in self._live)]

    def _info(self, session: Session) -> SessionInfo:
        alive = self._live.of(session.tenant, session.id)
        ram_bytes = sum(x.num_bytes for x in alive)
        if self._saver is None:
            info = stored.session_info(self._losses, session)
            return replace(info, ram_bytes=ram_bytes, disk_bytes=0, stored_tokens=0, state="ram", reason="")
        is_writing = self._is_writing(alive, session)  # before the index, which then has what was written in between
        info = replace(stored.session_info(self._saver.disk.index, session), ram_bytes=ram_bytes)
        if is_writing:
            return replace(info, state="writing", reason="")
        return replace(info, reason=_skip_reason(self._saver.disk.index, alive) or info.reason) if info.state == "skipped" else info

    def _is_writing(self, alive: list[LiveConversation], session: Session) -> bool:
        if any(live.pending for live in alive):  # before the queue, into which units move
            return True
        waiting = {record.info.key for record in self._saver.writer.waiting()} if self._saver else set()
        return not waiting.isdisjoint(session.keys)

    def _with_disk(self) -> DiskSaver:
        """Raises BadRequestError without a disk."""
        if self._saver is None:
            raise BadRequestError(
                "nothing is stored on disk, where names and pins are", hint="start the server without --bank-disk-bytes 0"
            )
        return self._saver

    def _flushed(self, tenant: str, id: str) -> DiskTier:
        """The disk, once all that is pending of the conversation is written. Raises UnknownSessionError, BadRequestError."""
        self.on_owner(lambda: self.one(tenant, id))  # there, a turn that has ended is stored by now
        saver = self._with_disk()
        while self.on_owner(lambda: self._capture_one(saver, tenant, id)):
            if saver.writer.is_full:
                self._flush()
        self._flush()
        return saver.disk

    def _capture_one(self, saver: DiskSaver, tenant: str, id: str) -> bool:
        """Capture one pending unit of the conversation, if the writer has capacity for it. Returns whether there was one."""
        live = next((live for live in self._live.of(tenant, id) if live.pending), None)
        if live and not saver.writer.is_full:
            saver.capture(live)
        return live is not None

    def _flush(self) -> None:
        if self._saver and not self._saver.writer.flush(_FLUSH_S):
            raise BankError(f"the disk did not finish pending writes within {_FLUSH_S:.0f} s", hint="try again later")


def _at_once(call: Callable[[], T], /) -> T:
    return call()


def _skip_reason(index: Index, alive: list[LiveConversation]) -> str:
    """Why the end of a live conversation is not on disk, "" if no reason is noted."""
    blocks = [(live, depth) for live in alive for depth in reversed(range(len(live.nodes)))]
    lost = (index.lost(live.nodes[depth], live.block(depth)) for live, depth in blocks)
    return next((f"{each.kind}: {each.reason}" for each in lost if each), "")
