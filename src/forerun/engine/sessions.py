"""The kept conversations, for whoever serves them: looks go to the bank from any thread, changes to the thread that owns it.

Knows no HTTP, no disk and no cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx

from forerun.bank.sessions import Sessions
from forerun.engine.request_log import RequestLog
from forerun.engine.worker import Worker
from forerun.text.prompt import Prompter
from forerun.values import SessionInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LocalSessions:
    """Those of the engine of this process."""

    worker: Worker
    prompter: Prompter
    log: RequestLog | None

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        return await asyncio.to_thread(self.worker.model().bank.sessions.all, tenant, limit)

    async def one(self, tenant: str, id: str) -> SessionInfo:
        return await asyncio.to_thread(self.worker.model().bank.sessions.one, tenant, id)

    async def mark(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        return await self._change(lambda sessions: sessions.mark(tenant, id, name=name, is_pinned=is_pinned))

    async def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        return await self._change(lambda sessions: sessions.fork(tenant, id, fork_id=fork_id, name=name))

    async def remove(self, tenant: str, id: str) -> None:
        await self._change(lambda sessions: sessions.remove(tenant, id))
        await self._forget(tenant, {id}.__contains__)

    async def wipe(self, tenant: str) -> int:
        num_sessions = await self._change(lambda sessions: sessions.wipe(tenant))
        await self._forget(tenant, lambda _: True)
        return num_sessions

    async def _change(self, work: Callable[[Sessions], T]) -> T:
        return await asyncio.wrap_future(self.worker.call(lambda model: work(model.bank.sessions)))

    async def _forget(self, tenant: str, is_gone: Callable[[str], bool]) -> None:
        """Let go of the copies that others than the bank hold of what was removed. is_gone: whether a conversation was, by its id."""
        self.prompter.forget()
        if self.log:
            await asyncio.to_thread(self.log.forget, tenant, is_gone)
        await asyncio.wrap_future(self.worker.call(lambda _: mx.clear_cache()))
