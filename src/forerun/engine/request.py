"""A submitted request, shared by the event loop (reads events, cancels) and the thread that serves it (posts events). Knows no MLX."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from forerun.bank.running_turns import RunningTurn
from forerun.grammar.matcher import Matcher
from forerun.text.prompt import Prompt
from forerun.values import ArchivedConversation, Done, Event, Job, Miss, PrefillProgress, QueuePosition, Report, Usage


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ends a request."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """How a request ended. outcome: its finish, "cancelled" or "error". usage, report: None if it failed or ended before its first token.
    error: None if it was served.
    """

    request: Request
    outcome: str
    usage: Usage | None
    report: Report | None
    error: Exception | None


class Request:
    """Iterate its events on the event loop that created it. Times are of time.monotonic().

    prefill_progress: the latest, None before prefill. answer_text: the raw answer so far. describe_miss: the miss of its report; it
    renders the prompt several times, so it is not called on the thread that serves. running: its turn, of one that waits at first.
    is_protected: whether what it would restore is, while it waits; unprotect: ends that. knows_place: whether a place in the queue was
    posted. write_limit_s: until when it waits for its state to be written to disk; 0 while it has not.
    matcher: of the grammar that its answer follows, None for none. unenforced: what of its schemas that does not hold.
    """

    def __init__(self, job: Job, prompt: Prompt, max_tokens: int, arrived_s: float) -> None:
        self.job, self.prompt, self.max_tokens = job, prompt, max_tokens
        self.arrived_s, self.started_s = arrived_s, arrived_s
        self.is_cancelled = self.knows_place = self.is_protected = False
        self.write_limit_s = 0.0
        self.prefill_progress: PrefillProgress | None = None
        self.answer_text = ""
        self.matcher: Matcher | None = None
        self.unenforced: tuple[str, ...] = ()
        self.running = RunningTurn()
        self.unprotect: Callable[[], None] = lambda: None
        self.describe_miss: Callable[[], Miss | None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | Failure] = asyncio.Queue()

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.tokens)

    @property
    def archived(self) -> ArchivedConversation | None:
        """The conversation that it imports, None for a client's request."""
        return self.job.prompt if isinstance(self.job.prompt, ArchivedConversation) else None

    def cancel(self) -> None:
        """Stop at the next step or chunk."""
        self.is_cancelled = True

    def start(self) -> None:
        """Note that serving begins."""
        self.started_s = time.monotonic()

    def post(self, event: Event | Failure) -> None:
        """Queue an event, from any thread. Dropped if the loop is closed."""
        if isinstance(event, PrefillProgress):
            self.prefill_progress = event
        self.knows_place |= isinstance(event, QueuePosition)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self._events.get()
            if isinstance(event, Failure):
                raise event.error
            yield event
            if isinstance(event, Done):
                return
