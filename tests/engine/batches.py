"""A batch without a thread: the test ticks it, and its clock runs with the rows that pass through the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import mlx.core as mx
import pytest
from tests.talking import opened, tokenizer

from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.engine import batch as batch_module
from forerun.engine.batch import Batch
from forerun.engine.model import Model
from forerun.engine.request import Request
from forerun.engine.sequence import Phase, RunningSequence
from forerun.models.base import Family
from forerun.models.load import DEMO_MODEL
from forerun.state.cache import View
from forerun.state.layout import Limits
from forerun.text.prompt import Prompter
from forerun.text.template import Template
from forerun.values import GREEDY, Job, TokenPrompt

_ids = count()
ROWS_PER_S = 16  # of a pass; a pass takes a second at least


class TracedFamily:
    """`family` on a machine of ROWS_PER_S. trace: ("piece", rows) for each layer of a prefill, ("round", rows) for each verification."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.now_s = 1.0  # 0 is when a tenant was served that never was
        self.trace: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    def monotonic(self) -> float:
        return self.now_s

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self.trace.append(("round", tokens.shape[0]))
        self.now_s += max(1.0, tokens.shape[0] / ROWS_PER_S)
        return self._family.forward(tokens, spans, view)

    def passes(self, tokens: mx.array, spans: Sequence[int], view: View) -> Iterator[mx.array]:
        layers = len(self._family.spec.layers)
        for i, x in enumerate(self._family.passes(tokens, spans, view)):
            if i < layers:  # the last is only a norm
                self.trace.append(("piece", tokens.shape[0]))
                self.now_s += max(1.0, tokens.shape[0] / ROWS_PER_S) / layers
            yield x


class TickedBatch:
    """batch: of a model around the family; ended: sequences that did, with the error or None; first_s: when each was prefilled."""

    def __init__(self, family: TracedFamily, bank: Any, depths: Sequence[int], max_running: int, memory_bytes: int) -> None:
        prompter = Prompter(tokenizer(), Template.load(DEMO_MODEL))
        steps = StepTable(family, eager_reason="test")  # type: ignore[arg-type]
        self.model = Model(steps, bank, prompter, DepthPolicy(depths), Limits(1 << 20, 64), memory_bytes, max_running, ())
        self.family, self.ended, self.first_s = family, dict[RunningSequence, Exception | None](), dict[RunningSequence, float]()
        self.batch = Batch(self.model, self.ended.__setitem__)

    def add(self, tokens: Sequence[int], **fields: Any) -> RunningSequence:
        """Admit a request for 10 greedy tokens. fields: of the Job, instead."""
        assert self.admits(tokens, **fields)
        return self.batch.running[-1]

    def admits(self, tokens: Sequence[int], **fields: Any) -> bool:
        """Whether it is admitted now."""
        return self.batch.admit(self.request(tokens, **fields))

    def request(self, tokens: Sequence[int], **fields: Any) -> Request:
        """One that waits."""
        job = replace(Job(f"job-{next(_ids)}", TokenPrompt(tuple(tokens)), GREEDY, 10, (), None, "", "use"), **fields)
        prompt = self.model.prompter.encode(job.prompt, tenant=job.tenant)
        return Request(job, prompt, job.max_tokens or 0, self.family.now_s)

    def tick(self) -> None:
        self.batch.tick()
        for sequence in self.batch.running:
            if sequence.phase is not Phase.PREFILL:
                self.first_s.setdefault(sequence, self.family.now_s)

    def run(self) -> None:
        """Until all have ended."""
        while self.batch.running:
            self.tick()


@contextmanager
def ticked(
    family: Family, monkeypatch: pytest.MonkeyPatch, *, depths: Sequence[int] = (2,), max_running: int = 8, memory_bytes: int = 1 << 40
) -> Iterator[TickedBatch]:
    """A batch on a clock of its own. Enter it in a running event loop."""
    traced = TracedFamily(family)
    with monkeypatch.context() as patched, closing(opened(None, family=family)) as bank:
        patched.setattr(batch_module, "time", traced)
        yield TickedBatch(traced, bank, depths, max_running, memory_bytes)
