"""A real engine around the fake family whose passes the test can hold, and requests to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
from tests.fake_family import FakeFamily, scattered
from tests.talking import opened, tokenizer
from tests.waiting import LIMIT_S, until

from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.engine.engine import Run
from forerun.engine.local import LocalEngine
from forerun.engine.model import Model
from forerun.engine.request_recorder import RequestLog
from forerun.engine.worker import Worker
from forerun.models.base import Family
from forerun.models.load import DEMO_MODEL
from forerun.state.cache import View
from forerun.state.layout import Limits
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.text.tokenizer import Tokenizer
from forerun.values import GREEDY, AnswerRules, CallRule, Event, Job, ModelInfo, TokenPrompt

CONTEXT = 4096
ARCHIVE_KEY = b"k" * 32
_ids = count()

FREE = CallRule(is_enforced=False)  # scripted answers make calls as they like


class Gate:
    """Called before every forward pass of a family; holds passes. rows: of each pass so far, a held one included."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.errors: list[Exception] = []
        self._state = threading.Condition()
        self._tickets: float = float("inf")

    def __call__(self, rows: int) -> None:
        with self._state:
            self.rows.append(rows)
            self._state.notify_all()
            assert self._state.wait_for(lambda: self._tickets > 0, LIMIT_S)
            self._tickets -= 1
        if self.errors:
            raise self.errors.pop()

    def hold(self, after: int = 0) -> None:
        """Let only `after` more passes through."""
        with self._state:
            self._tickets = after
            self._state.notify_all()

    def open(self) -> None:
        """Let all through."""
        self.hold(1 << 40)

    async def let(self, num: int, is_idle: Callable[[], bool]) -> None:
        """Let so many more passes through, or all that there are."""
        target = len(self.rows) + num
        self.hold(after=num)
        await until(lambda: len(self.rows) >= target or is_idle())

    async def reached(self, num_passes: int) -> None:
        """Wait until num_passes passes have begun."""

        def wait() -> None:
            with self._state:
                assert self._state.wait_for(lambda: len(self.rows) >= num_passes, LIMIT_S), self.rows

        await asyncio.to_thread(wait)


class GatedFamily:
    """`family`, with the hook of the fake one."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.before_pass: Callable[[int], object] = lambda rows: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self.before_pass(tokens.shape[0])
        return self._family.forward(tokens, spans, view)

    def passes(self, tokens: mx.array, spans: Sequence[int], view: View) -> Iterator[mx.array]:
        self.before_pass(tokens.shape[0])
        yield from self._family.passes(tokens, spans, view)


class Rig:
    """engine: the engine; gate: before its model's passes; family: its model.

    folder: of its bank; **bank: further options of `opened`. forgets: its tokenizer shares no answers with other engines'. template: the
    bundled model's, if none is given; model: the fake family, if none is given.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        context_tokens: int = CONTEXT,
        dense_tokens: int = 1 << 20,
        memory_bytes: int = 1 << 40,
        max_running: int = 8,
        forgets: bool = False,
        log: RequestLog | None = None,
        template: Template | None = None,
        model: Family | None = None,
        depths: Sequence[int] = (0, 1, 2),
        **bank: Any,
    ) -> None:
        self.gate = Gate()
        self.family: Any = GatedFamily(model) if model else FakeFamily(scattered(6000), tokenizer().size)
        own_tokenizer = Tokenizer.load(DEMO_MODEL) if forgets else tokenizer()
        self.family.before_pass = self.gate
        prompter = Prompter(own_tokenizer, template or Template.load(DEMO_MODEL))
        worker = Worker(
            lambda: Model(
                StepTable(self.family, eager_reason="test"),
                opened(folder, family=self.family, **bank),
                prompter,
                DepthPolicy(depths),
                Limits(dense_tokens, 64),
                memory_bytes,
                max_running,
                (),
            )
        )
        rules = AnswerRules(enforce_calls=FREE.is_enforced)
        info = ModelInfo("fake", "fake", "cpu", "exact", "none", context_tokens, 0, GREEDY, demo=False, rules=rules)
        self.engine = LocalEngine(info, worker, {}, log, ARCHIVE_KEY)

    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self.engine.worker.counts() == (0, 0)

    async def ask(self, tokens: Sequence[int], **fields: Any) -> Run:
        """Submit a prompt of these tokens for 10 greedy tokens. fields: of the Job, instead."""
        job = Job(f"job-{next(_ids)}", TokenPrompt(tuple(tokens)), GREEDY, 10, (), None, "", "use", calls=FREE)
        return await self.engine.submit(replace(job, **fields))


@asynccontextmanager
async def running(folder: Path | None = None, **options: Any) -> AsyncIterator[Rig]:
    """An engine, closed at the end."""
    rig = Rig(folder, **options)
    try:
        yield rig
    finally:
        rig.gate.open()
        await rig.engine.close(LIMIT_S)


async def events(run: Run) -> list[Event]:
    """All events of a request. Raises what ended it."""

    async def gather() -> list[Event]:
        return [event async for event in run]

    return await asyncio.wait_for(gather(), LIMIT_S)
