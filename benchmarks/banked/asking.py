"""The bundled model's engine in this process, as a server has it, and requests to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerun.config import Config
from forerun.engine.assemble import assemble
from forerun.engine.engine import Run
from forerun.engine.local import LocalEngine
from forerun.kernels import arithmetic
from forerun.values import GREEDY, BankUse, Event, Job, Prompt

_PAUSE_S = 0.005


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[LocalEngine]:
    """An engine with a bank in the folder."""
    config = Config(bank_dir=folder, request_log_bytes=0, bank_disk_bytes=4 << 30, **settings)
    engine = assemble(config, arithmetic.here(), lambda doing, done_frac: None)
    try:
        yield engine
    finally:
        await engine.close(30)


async def submit(engine: LocalEngine, prompt: Prompt, *, max_tokens: int, bank: BankUse) -> Run:
    """A greedy answer of exactly `max_tokens`."""
    sampling = replace(GREEDY, logit_bias=dict.fromkeys(engine.prompter.tokenizer.stop_ids, -100.0))
    return await engine.submit(Job("job", prompt, sampling, max_tokens, (), None, "", bank))


async def events(run: Run) -> AsyncIterator[tuple[float, Event]]:
    """What comes, each with its moment."""
    async for event in run:
        yield time.perf_counter(), event


async def until_written(engine: LocalEngine) -> None:
    """Wait until all that was pending is on disk."""

    def wait() -> None:
        while engine.health().bank.pending_writes:
            time.sleep(_PAUSE_S)

    await asyncio.to_thread(wait)
