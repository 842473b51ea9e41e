"""An engine that plays a script: no model, no MLX. It records its jobs and whether they were cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import BinaryIO

from prometheus_client import CollectorRegistry, Counter

from forerun.errors import (
    BadRequestError,
    BankError,
    ForerunError,
    UnknownPreviousResponseError,
    UnknownResponseError,
    UnknownSessionError,
)
from forerun.values import (
    BankHealth,
    Content,
    Done,
    Event,
    Health,
    ImportResult,
    Job,
    ModelInfo,
    Prompt,
    Report,
    Sampling,
    SessionInfo,
    StoredResponse,
    Usage,
)

SUGGESTED = Sampling(0.6, 0.95, 20, 0.0, None, 1.0, 0.0, 0.0, {})
INFO = ModelInfo("double", "none", "cpu", "exact", "none", 4096, 1_700_000_000, SUGGESTED, demo=False)
REPORT = Report(
    "s1",
    "ram",
    "contiguous",
    "contiguous",
    "contiguous",
    "contiguous",
    0,
    "eager",
    1,
    0,
    {"requested": 1},
    "exact",
    3,
    4,
    0.0,
    0.5,
    1.5,
    3.0,
    "",
    0.01,
    0.02,
    100.0,
    50.0,
    1,
    1.0,
    (1,),
    (0,),
    (0, 1),
    "",
    None,
    (),
    (),
    0,
    0,
)
DONE = Done("stop", Usage(7, 3, 2, 1), REPORT, "")

Step = Event | Exception | float  # an event to give, an error to raise, or seconds to wait
HELLO: Sequence[Step] = (Content("Hel"), Content("lo"), DONE)


class Run:
    """Plays its script."""

    prompt_tokens = 7

    def __init__(self, script: Sequence[Step]) -> None:
        self.is_cancelled = False
        self._script = script

    async def __aiter__(self) -> AsyncIterator[Event]:
        for step in self._script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step

    def cancel(self) -> None:
        self.is_cancelled = True


class Sessions:
    """Stores none."""

    async def all(self, tenant: str, limit: int) -> list[SessionInfo]:
        return []

    async def one(self, tenant: str, id: str) -> SessionInfo:
        raise UnknownSessionError(id)

    async def update(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> SessionInfo:
        raise UnknownSessionError(id)

    async def fork(self, tenant: str, id: str, *, fork_id: str | None, name: str) -> SessionInfo:
        raise UnknownSessionError(id)

    async def export(self, tenant: str, id: str, *, with_state: bool) -> Iterator[bytes | memoryview]:
        raise UnknownSessionError(id)

    async def load(self, tenant: str, archive: BinaryIO, *, id: str | None) -> ImportResult:
        raise BadRequestError("no archive")

    async def wipe(self, tenant: str) -> int:
        return 0

    async def remove(self, tenant: str, id: str) -> None:
        raise UnknownSessionError(id)


class Responses:
    """Stores them in a dictionary. failure: what storing raises instead."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], StoredResponse] = {}
        self.failure: BankError | None = None

    async def put(self, tenant: str, response: StoredResponse) -> None:
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure
        self.stored[tenant, response.id] = response

    async def update(self, tenant: str, response: StoredResponse) -> None:
        if (tenant, response.id) in self.stored:
            await self.put(tenant, response)

    async def one(self, tenant: str, id: str) -> StoredResponse:
        if (tenant, id) not in self.stored:
            raise UnknownResponseError(id)
        return self.stored[tenant, id]

    async def chain(self, tenant: str, id: str) -> list[StoredResponse]:
        found: list[StoredResponse] = []
        while id:
            if (tenant, id) not in self.stored:
                raise UnknownPreviousResponseError(id)
            found.insert(0, self.stored[tenant, id])
            id = found[0].previous
        return found

    async def remove(self, tenant: str, id: str) -> None:
        await self.one(tenant, id)
        del self.stored[tenant, id]


class Engine:
    """Plays the same script for every job. refusal: what submit raises instead."""

    failure = ""
    info = INFO

    def __init__(self, *script: Step, refusal: ForerunError | None = None) -> None:
        self.registry = CollectorRegistry()
        Counter("forerun_turns", "Turns served.", registry=self.registry)
        self.jobs: list[Job] = []
        self.runs: list[Run] = []
        self.refusal = refusal
        self.reasons: tuple[str, ...] = ()
        self.ready = True
        self.sessions, self.responses = Sessions(), Responses()
        self._script = script or HELLO

    async def check(self, job: Job) -> None: ...

    async def submit(self, job: Job) -> Run:
        if self.refusal:
            raise self.refusal
        self.jobs.append(job)
        self.runs.append(Run(self._script))
        return self.runs[-1]

    def health(self) -> Health:
        return Health("degraded" if self.reasons else "ok", self.ready, self.reasons, 1, 2, BankHealth(3, 3, 0, 4, 5, 6, 7, 8, 0, 0, 0, ""))

    def announce(self, address: str) -> None: ...

    async def count_tokens(self, prompt: Prompt, *, tenant: str) -> int:
        return 11

    async def close(self, limit_s: float) -> None: ...
