"""The engine of this process: renders and encodes prompts on the caller's side and hands them to the worker."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from forerun.engine import prompt_encoding
from forerun.engine.engine import Run
from forerun.engine.metrics import Gauges, Metrics
from forerun.engine.request import Request
from forerun.engine.request_recorder import RequestLog
from forerun.engine.response_calls import LocalResponses
from forerun.engine.session_calls import LocalSessions
from forerun.engine.worker import Worker
from forerun.errors import BadRequestError, ContextLengthError
from forerun.grammar.compile import Grammars
from forerun.values import Health, Job, ModelInfo, Prompt, TokenPrompt


@dataclass
class LocalEngine:
    """The Engine on one worker. log: the request log, None for none. archive_key: signs archives, b"" for none.

    The constructor blocks until the worker has loaded the model.
    """

    info: ModelInfo
    worker: Worker
    gauges: Gauges
    log: RequestLog | None
    archive_key: bytes

    def __post_init__(self) -> None:
        self.model = self.worker.model()
        self.prompter, metrics = self.model.prompter, Metrics(self.health, self.gauges)
        self.grammars = Grammars(self.model.tokenizer, self.model.family.vocab)
        self.registry = metrics.registry
        self.sessions = LocalSessions(self.worker, self.prompter, self.log, self.archive_key, self.submit)
        self.responses = LocalResponses(self.model.bank.responses)
        self.worker.observers = (metrics.count, *([self.log.write] if self.log else []))

    async def check(self, job: Job) -> None:
        await self._request(job)

    async def submit(self, job: Job) -> Run:
        request = await self._request(job)
        self.worker.submit(request)
        return request

    async def _request(self, job: Job) -> Request:
        arrived_s = time.monotonic()
        prompt = await asyncio.to_thread(prompt_encoding.encode, self.prompter, self.model.bank, job, self.info.context_tokens)
        vocab = self.model.family.vocab
        if not prompt.tokens:
            raise BadRequestError("the prompt is empty", param="prompt")
        if isinstance(job.prompt, TokenPrompt) and not all(0 <= t < vocab for t in prompt.tokens):
            raise BadRequestError(f"token ids run from 0 to {vocab - 1}", param="prompt")
        if any(not 0 <= token < vocab for token in job.sampling.logit_bias):
            raise BadRequestError(f"logit_bias: token ids run from 0 to {vocab - 1}", param="logit_bias")
        request = Request(job, prompt, self._max_tokens(job, len(prompt.tokens)), arrived_s)
        if grammar := await asyncio.to_thread(self.grammars.compile, job, prompt):
            request.matcher, request.unenforced = grammar.matcher(), grammar.unenforced
        return request

    async def count_tokens(self, prompt: Prompt, *, tenant: str) -> int:
        return await asyncio.to_thread(self.prompter.count, prompt, tenant=tenant)

    def health(self) -> Health:
        running, waiting = self.worker.counts()
        num_storing = int(self.worker.is_storing)  # before the bank's, into which they move
        bank = self.model.bank.stats.health()
        bank = replace(bank, pending_writes=bank.pending_writes + num_storing)
        reasons = (*self.model.degraded_reasons, *filter(None, [bank.failure, self.failure]))
        return Health("degraded" if reasons else "ok", not self.worker.is_closing, reasons, running, waiting, bank)

    @property
    def failure(self) -> str:
        return self.worker.failure

    def announce(self, address: str) -> None:
        self.model.bank.sessions.announce(address)

    async def close(self, limit_s: float) -> None:
        await asyncio.to_thread(self.worker.close, limit_s)
        if self.log:
            self.log.file.close()

    def _max_tokens(self, job: Job, prompt_tokens: int) -> int:
        """The request's limit, or the rest of the context if that is less: agents request more than it. Raises ContextLengthError."""
        headroom_tokens = self.info.context_tokens - prompt_tokens
        if headroom_tokens < 1:
            raise ContextLengthError(str(prompt_tokens), self.info.context_tokens)
        return headroom_tokens if job.max_tokens is None else min(headroom_tokens, job.max_tokens)
