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
from forerun.engine.worker import Worker
from forerun.text.prompt import Prompter
from forerun.values import SessionInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LocalSessions:
    """Those of the engine of this process."""

    worker: Worker
    prompter: Prompter

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        return await asyncio.to_thread(self.worker.model().bank.sessions.all, tenant, limit)

    async def one(self, tenant: str, id: str) -> SessionInfo:
        return await asyncio.to_thread(self.worker.model().bank.sessions.one, tenant, id)

    async def mark(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        return await self._change(lambda sessions: sessions.mark(tenant, id, name=name, is_pinned=is_pinned))

    async def remove(self, tenant: str, id: str) -> None:
        await self._change(lambda sessions: sessions.remove(tenant, id))
        await self._forget()

    async def _change(self, work: Callable[[Sessions], T]) -> T:
        return await asyncio.wrap_future(self.worker.call(lambda model: work(model.bank.sessions)))

    async def _forget(self) -> None:
        """Let go of the copies of what was removed that others than the bank hold."""
        self.prompter.forget()
        await asyncio.wrap_future(self.worker.call(lambda _: mx.clear_cache()))
