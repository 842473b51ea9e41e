"""The jobs of one request as one run, one after the other: the request holds one place in the queue, and others come in between.

Knows the engine's facade; knows no dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from forerun.engine.engine import Engine, Run
from forerun.errors import BusyError
from forerun.values import Event, Job


async def begin(engine: Engine, jobs: Sequence[Job]) -> Series:
    """The jobs as one run. Nothing is computed if one of them cannot be. Raises what `Engine.submit` raises."""
    first, *others = jobs
    for job, before in zip(others, jobs, strict=False):
        if job.prompt is not before.prompt:  # the choices of one prompt share it
            await engine.check(job)
    return Series(engine, await engine.submit(first), others)


class Series:
    """Iterate the events of all its jobs; a Done for each. first: the run of the first job; the others are submitted in turn.

    Raises what `Engine.submit` and the runs raise; later jobs wait for a full queue, as long as their reader does.
    """

    def __init__(self, engine: Engine, first: Run, others: Sequence[Job]) -> None:
        self._engine, self._run, self._others = engine, first, others
        self._is_cancelled = False

    @property
    def prompt_tokens(self) -> int:
        """Of the job that runs."""
        return self._run.prompt_tokens

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._run:
            yield event
        for job in self._others:
            if self._is_cancelled:
                return
            self._run = await self._submitted(job)
            async for event in self._run:
                yield event

    async def _submitted(self, job: Job) -> Run:
        """The run of a later job. Where the queue is full it asks again: what is written so far must not be lost."""
        while True:
            try:
                return await self._engine.submit(job)
            except BusyError as error:
                if not self._engine.health().ready:
                    raise
                await asyncio.sleep(error.retry_after_s)

    def cancel(self) -> None:
        """Stop the job that runs, and begin no other."""
        self._is_cancelled = True
        self._run.cancel()
