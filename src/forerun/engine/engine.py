"""The engine's interface to `serve` and `cli`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry

from forerun.values import Event, Health, ImportResult, Job, ModelInfo, Prompt, SessionInfo


class Run(Protocol):
    """A submitted request. Iterating yields its events; the last is `Done`, unless an exception of forerun.errors ends it."""

    @property
    def prompt_tokens(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Stop at the next step or chunk. Idempotent, from any thread; no effect once finished."""


class Sessions(Protocol):
    """The stored conversations, per tenant. Queries return at once, changes once the running request has ended.

    Raise UnknownSessionError, and BadRequestError for an operation that needs a disk tier where there is none.
    """

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        """Most recently used first, at most `limit`."""

    async def one(self, tenant: str, id: str) -> SessionInfo: ...

    async def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        """Set name and pin; None leaves one unchanged."""

    async def remove(self, tenant: str, id: str) -> None:
        """Remove it with all records that no other conversation shares, from RAM and disk."""

    async def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        """Make a second conversation that starts with this one's present content. fork_id None: a new id."""

    async def export(self, tenant: str, id: str, *, with_state: bool) -> Iterator[bytes | memoryview]:
        """An archive of what is on disk of it."""

    async def load(self, tenant: str, archive: bytes, *, id: str | None) -> ImportResult:
        """Store an archive's conversation; id None: the archive's. Its state is used if the server's key signed it, else computed again."""

    async def wipe(self, tenant: str) -> int:
        """Remove all conversations of the tenant. Returns their number."""


class Engine(Protocol):
    """Runs jobs one at a time: fair share between tenants, first come first served within one."""

    info: ModelInfo
    registry: CollectorRegistry

    @property
    def sessions(self) -> Sessions: ...

    async def check(self, job: Job) -> None:
        """Raise what `submit` would, without queueing: ContextLengthError, BadRequestError (the template refuses)."""

    async def submit(self, job: Job) -> Run:
        """Render, encode and queue the job. Raises BusyError (queue full), ContextLengthError, BadRequestError (the template refuses)."""

    async def count_tokens(self, prompt: Prompt, *, tenant: str) -> int:
        """The prompt's length in tokens. Raises BadRequestError (the template refuses)."""

    def health(self) -> Health: ...

    def announce(self, address: str) -> None:
        """Write the server's address into the bank's folder, for the commands that manage the bank."""

    async def close(self, limit_s: float) -> None:
        """Within `limit_s`: finish or cancel requests, write pending records, release the model."""
