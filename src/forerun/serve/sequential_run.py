"""The jobs of one request as one run, one after the other: at most one of them is queued, and other requests run in between.

Knows the engine's facade; knows no dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from forerun.engine.engine import Engine, Run
from forerun.errors import BusyError
from forerun.values import Event, Job


async def start(engine: Engine, jobs: Sequence[Job]) -> SequentialRun:
    """Start the jobs as one run. Nothing is computed if one of them is invalid. Raises what `Engine.submit` raises."""
    first, *others = jobs
    for job, before in zip(others, jobs, strict=False):
        if job.prompt is not before.prompt:  # choices of one prompt share it
            await engine.check(job)
    return SequentialRun(engine, await engine.submit(first), others)


class SequentialRun:
    """Iterate the events of all jobs; a Done for each. first: the run of the first job; each later one is submitted after the Done before.

    Raises what `Engine.submit` and the runs raise. Where the queue is full, a later job waits as long as its client does.
    """

    def __init__(self, engine: Engine, first: Run, others: Sequence[Job]) -> None:
        self._engine, self._run, self._others = engine, first, others
        self._is_cancelled = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._run:
            yield event
        for job in self._others:
            if self._is_cancelled:
                return
            self._run = await self._submit(job)
            async for event in self._run:
                yield event

    async def _submit(self, job: Job) -> Run:
        """The run of a later job. Retries where the queue is full: the choices so far must not be lost."""
        while True:
            try:
                return await self._engine.submit(job)
            except BusyError as error:
                if not self._engine.health().ready:
                    raise
                await asyncio.sleep(error.retry_after_s)

    def cancel(self) -> None:
        """Stop the running job, and submit no other."""
        self._is_cancelled = True
        self._run.cancel()
