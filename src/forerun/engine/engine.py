"""The interface of the engine to serve and cli."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import BinaryIO, Protocol

from prometheus_client import CollectorRegistry

from forerun.values import Event, Health, ImportResult, Job, ModelInfo, Prompt, SessionInfo, StoredResponse


class Run(Protocol):
    """A submitted request: iterate its events; the last is `Done`, unless an exception of forerun.errors is raised."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Stop at the next step or chunk. Idempotent, from any thread; a no-op when finished."""


ALL_TENANTS = ":"  # no tenant's name: a name ends at its colon in the keys file


class Sessions(Protocol):
    """The stored conversations, each addressed by tenant and id: of this process's engine, of a folder that no server holds
    (`cli/session_access.py`), or of a running server (`serve/remote.py`).

    Raise UnknownSessionError, BankError, and BadRequestError for what needs a disk where none is used.
    """

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        """The tenant's, most recently used first, at most `limit`. ALL_TENANTS: all that the caller may see."""

    async def one(self, tenant: str, id: str) -> SessionInfo: ...

    async def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        """Set the name, and whether it is pinned; None: unchanged."""

    async def remove(self, tenant: str, id: str) -> None:
        """Remove it from RAM and disk, with all records that no other conversation needs."""

    async def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        """Start a second conversation from this one as it is now. fork_id None: a new id."""

    async def export(self, tenant: str, id: str, *, with_state: bool) -> Iterator[bytes | memoryview]:
        """Its archive, as far as it is on disk."""

    async def load(self, tenant: str, archive: BinaryIO, *, id: str | None) -> ImportResult:
        """Store an archive's conversation, under its own id if None. Its state is used if signed with the server's key, else recomputed."""

    async def wipe(self, tenant: str) -> int:
        """Remove all of the tenant, or of ALL_TENANTS that the caller may see, with the responses. Returns the number of conversations."""


class Responses(Protocol):
    """The stored responses of the Responses API, each addressed by tenant and id. Survive the process where there is a disk.

    Raise BankError.
    """

    async def put(self, tenant: str, response: StoredResponse) -> None:
        """Store it; committed on return. Not if its conversation was removed since it began. Raises BankFullError."""

    async def update(self, tenant: str, response: StoredResponse) -> None:
        """Replace the one of this id, if it still exists. Raises BankFullError."""

    async def one(self, tenant: str, id: str) -> StoredResponse:
        """Raises UnknownResponseError."""

    async def chain(self, tenant: str, id: str) -> list[StoredResponse]:
        """It and all that it continues, the first one first. Raises UnknownPreviousResponseError, BadRequestError if they are too large."""

    async def remove(self, tenant: str, id: str) -> None:
        """Raises UnknownResponseError."""


class Engine(Protocol):
    """Runs jobs, several at once: they start tenants in turn, and each tenant's in the order of submission."""

    info: ModelInfo
    registry: CollectorRegistry

    @property
    def sessions(self) -> Sessions: ...

    @property
    def responses(self) -> Responses: ...

    async def check(self, job: Job) -> None:
        """Raises ContextLengthError, BadRequestError (the template refuses) where `submit` would, and queues nothing."""

    async def submit(self, job: Job) -> Run:
        """Render, encode and queue the job. Raises BusyError (queue full), ContextLengthError, BadRequestError (the template refuses)."""

    async def count_tokens(self, prompt: Prompt, *, tenant: str) -> int:
        """How many tokens the prompt has. Raises BadRequestError (the template refuses)."""

    def health(self) -> Health:
        """Queries the bank's index: not on an event loop."""

    @property
    def failure(self) -> str:
        """Why no request can be served any more, "" if they can: the process should end."""

    def announce(self, address: str) -> None:
        """Note the server's address in the bank's folder, for `forerun bank`."""

    async def close(self, limit_s: float) -> None:
        """Finish or cancel running requests within `limit_s`, write what is pending, release the model."""
