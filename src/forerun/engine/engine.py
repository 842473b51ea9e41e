"""The facade of the engine: what serve and cli see of the machine that runs requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry

from forerun.values import Event, Health, ImportResult, Job, ModelInfo, Prompt, SessionInfo


class Run(Protocol):
    """A submitted request: iterate its events, exactly one of them `Done` and that the last, or an exception of forerun.errors."""

    @property
    def prompt_tokens(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Stop at the next step or chunk. Idempotent, from any thread; a no-op when finished."""


class Sessions(Protocol):
    """The conversations that are kept, each tenant's own. Looks are answered at once, changes when the request that runs is over.

    Raise UnknownSessionError, and BadRequestError for what needs a disk where nothing is kept on one.
    """

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        """The last used first, `limit` at most."""

    async def one(self, tenant: str, id: str) -> SessionInfo: ...

    async def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        """Call it so, pin it or not; None: as it was."""

    async def remove(self, tenant: str, id: str) -> None:
        """Remove it, and what no other conversation needs, wherever it is."""

    async def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        """Let a second conversation begin as this one is now. fork_id None: it is given one."""

    async def export(self, tenant: str, id: str, *, with_state: bool) -> Iterator[bytes | memoryview]:
        """An archive of it, as far as it is on disk."""

    async def load(self, tenant: str, archive: bytes, *, id: str | None) -> ImportResult:
        """Keep what an archive holds, under its own id if None: its state as it is if it is signed by the server's key, else read anew."""

    async def wipe(self, tenant: str) -> int:
        """Remove all that the tenant has. Returns the number of conversations."""


class Engine(Protocol):
    """Runs jobs one after the other: tenants in turn, and each one's in the order of their submission."""

    info: ModelInfo
    registry: CollectorRegistry

    @property
    def sessions(self) -> Sessions: ...

    async def check(self, job: Job) -> None:
        """Raises ContextLengthError, BadRequestError (the template refuses) where `submit` would, and queues nothing."""

    async def submit(self, job: Job) -> Run:
        """Render, encode and queue the job. Raises BusyError (queue full), ContextLengthError, BadRequestError (the template refuses)."""

    async def count_tokens(self, prompt: Prompt, *, tenant: str) -> int:
        """How many tokens the prompt has. Raises BadRequestError (the template refuses)."""

    def health(self) -> Health: ...

    def announce(self, address: str) -> None:
        """Have the bank's folder say where its server answers, for the commands that look after it."""

    async def close(self, limit_s: float) -> None:
        """Finish or cut off what runs within `limit_s`, write what is pending, release the model."""
