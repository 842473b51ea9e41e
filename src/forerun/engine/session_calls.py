"""The stored conversations of this process's engine: reads go to the bank from any thread, changes run one after the other on a thread of
their own, which waits for the disk, and call the thread that owns MLX for what they do to caches.

Knows no HTTP, no disk and no cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar
from uuid import uuid4

from forerun.bank.archive import Archive
from forerun.bank.session_store import SessionStore
from forerun.bank.transfer import pack
from forerun.engine.engine import Run
from forerun.engine.request_recorder import RequestLog
from forerun.engine.worker import Worker
from forerun.errors import ForerunError
from forerun.kernels.buffers import release_buffers
from forerun.text.prompt import Prompter
from forerun.values import GREEDY, ArchivedConversation, ImportResult, Job, SessionInfo

T = TypeVar("T")
_FAILED_S = 1.0  # between two checks that the thread that owns MLX lives


@dataclass(frozen=True, slots=True)
class LocalSessions:
    """`Sessions` of this process. archive_key: signs archives, b"" for none. submit: the engine's."""

    worker: Worker
    prompter: Prompter
    log: RequestLog | None
    archive_key: bytes
    submit: Callable[[Job], Awaitable[Run]]
    _changes: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "sessions"), init=False)

    def __post_init__(self) -> None:
        self.worker.model().bank.sessions.on_owner = self._on_owner

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        return await asyncio.to_thread(self.worker.model().bank.sessions.all, tenant, limit)

    async def one(self, tenant: str, id: str) -> SessionInfo:
        return await asyncio.to_thread(self.worker.model().bank.sessions.one, tenant, id)

    async def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        return await self._change(lambda sessions: sessions.update(tenant, id, name=name, is_pinned=is_pinned))

    async def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        return await self._change(lambda sessions: sessions.fork(tenant, id, fork_id=fork_id, name=name))

    async def export(self, tenant: str, id: str, *, with_state: bool) -> Iterator[bytes | memoryview]:
        disk, session = await self._change(lambda sessions: sessions.written(tenant, id))
        return await asyncio.to_thread(pack, disk, session, self.archive_key, with_state=with_state)

    async def load(self, tenant: str, archive: BinaryIO, *, id: str | None) -> ImportResult:
        read, sessions = await asyncio.to_thread(Archive.read, archive), self.worker.model().bank.sessions
        id, refusal = id or read.manifest.id, sessions.refusal(read, self.archive_key)
        if refusal:
            return ImportResult(await self._compute(read, tenant, id), "computed", refusal)
        return ImportResult(await self._take(tenant, id, read), "imported", "")

    async def _take(self, tenant: str, id: str, archive: Archive) -> SessionInfo:
        is_wanted = True

        def check() -> None:
            if not is_wanted:
                raise ForerunError("the client disconnected")

        try:
            return await self._change(lambda sessions: sessions.take(tenant, id, archive, check))
        finally:
            is_wanted = False

    async def _compute(self, archive: Archive, tenant: str, id: str) -> SessionInfo:
        """Prefill the tokens up to the last snapshot, queued as a request. An import that fails or is cancelled leaves nothing."""
        self.worker.model().bank.sessions.check_new(tenant, id, archive)
        manifest = archive.manifest
        prompt = ArchivedConversation(archive.tokens[: manifest.snapshots[-1]], manifest.snapshots, manifest.turns)
        run = await self.submit(Job(f"import-{uuid4().hex}", prompt, GREEDY, 1, (), id, tenant, "use"))
        try:
            async for _ in run:
                pass
        finally:
            run.cancel()
        return await self.update(tenant, id, name=manifest.name, is_pinned=None)

    async def remove(self, tenant: str, id: str) -> None:
        await self._change(lambda sessions: sessions.remove(tenant, id))
        await self._forget(tenant, {id}.__contains__)

    async def wipe(self, tenant: str) -> int:
        num_sessions = await self._change(lambda sessions: sessions.wipe(tenant))
        await self._forget(tenant, lambda _: True)
        return num_sessions

    async def _change(self, work: Callable[[SessionStore], T]) -> T:
        context, sessions = copy_context(), self.worker.model().bank.sessions
        return await asyncio.get_running_loop().run_in_executor(self._changes, lambda: context.run(work, sessions))

    def _on_owner(self, call: Callable[[], T], /) -> T:
        future = self.worker.call(lambda _: call())
        while not wait([future], _FAILED_S).done:
            if self.worker.failure:
                raise ForerunError(self.worker.failure, hint="the server stops; start it again")
        return future.result()

    async def _forget(self, tenant: str, is_gone: Callable[[str], bool]) -> None:
        """Drop the copies of removed conversations outside the bank. is_gone: whether a conversation was removed, by its id."""
        self.prompter.forget(tenant, is_gone)
        if self.log:
            await asyncio.to_thread(self.log.forget, tenant, is_gone)
        await asyncio.wrap_future(self.worker.call(lambda _: release_buffers()))
