"""The stored responses of this process's engine: each call waits for the disk on a thread of its own.

Knows no HTTP and no disk.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from forerun.bank.response_store import ResponseStore
from forerun.values import StoredResponse


@dataclass(frozen=True, slots=True)
class LocalResponses:
    """`Responses` of this process."""

    store: ResponseStore

    async def put(self, tenant: str, response: StoredResponse) -> None:
        await asyncio.to_thread(self.store.put, tenant, response)

    async def update(self, tenant: str, response: StoredResponse) -> None:
        await asyncio.to_thread(self.store.update, tenant, response)

    async def one(self, tenant: str, id: str) -> StoredResponse:
        return await asyncio.to_thread(self.store.one, tenant, id)

    async def chain(self, tenant: str, id: str) -> list[StoredResponse]:
        return await asyncio.to_thread(self.store.chain, tenant, id)

    async def remove(self, tenant: str, id: str) -> None:
        await asyncio.to_thread(self.store.remove, tenant, id)
