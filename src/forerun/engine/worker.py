"""The one thread that touches MLX: it loads the model, serves requests in turn, and captures for the disk when nothing else waits."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from forerun.decode.depth import WARNING
from forerun.engine.fair_share import may_wait, plan, retry_after_s
from forerun.engine.memory import explained
from forerun.engine.request import EndedRequest, Failure, Request
from forerun.engine.turn import Cancelled, Model, Turn
from forerun.errors import BusyError, ForerunError
from forerun.log import request_id
from forerun.values import Done, QueuePosition

log = logging.getLogger(__name__)
T = TypeVar("T")
_MEAN_WEIGHT = 0.2
_LAST_S = 1.0  # of the time for closing, left for letting go
SAVING_FRAC = 0.05  # of a running request's time, at most, for copying what is to be saved, a unit at a time


class Worker:
    """Serves requests one at a time: tenants in turn, and each one's in the order of their submission.

    observers: are told of every client's request that ends, on any thread.
    """

    def __init__(self, load: Callable[[], Model]) -> None:
        self.observers: tuple[Callable[[EndedRequest], None], ...] = ()
        self._load = load
        self._waiting: deque[Request] = deque()
        self._calls: deque[Callable[[Model], None]] = deque()
        self._running: Request | None = None
        self._served_s: dict[str, float] = {}
        self._state = threading.Condition()
        self.is_closing = False
        self._stop_s = 0.0
        self._mean_request_s = 1.0
        self._may_capture_s = 0.0
        self._is_draft_failing = False
        self._model: Future[Model] = Future()
        self._thread = threading.Thread(target=self._run, name="mlx", daemon=True)
        self._thread.start()

    def model(self) -> Model:
        """The model, when it is loaded. Raises what loading raised."""
        return self._model.result()

    def submit(self, request: Request) -> None:
        """Queue the request. Raises BusyError if too many wait."""
        with self._state:
            self._forget_cancelled()
            if self.is_closing:
                raise BusyError("the server is stopping", retry_after_s=10)
            if not may_wait(self._waiting, request.job.tenant):
                wait_s = retry_after_s(len(self._waiting), self._mean_request_s)
                raise BusyError(f"{len(self._waiting)} requests wait already", retry_after_s=wait_s, hint=f"try again in {wait_s} s")
            ahead = len(self._waiting) + (self._running is not None)
            self._waiting.append(request)
            self._state.notify_all()
        if ahead:
            request.post(QueuePosition(ahead))

    def call(self, work: Callable[[Model], T]) -> Future[T]:
        """Have something done on this thread, before the next request. Raises BusyError if the server is stopping."""
        future: Future[T] = Future()

        def do(model: Model) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(model))
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for it
                future.set_exception(error)

        with self._state:
            if self.is_closing:
                raise BusyError("the server is stopping", retry_after_s=10)
            self._calls.append(do)
            self._state.notify_all()
        return future

    def counts(self) -> tuple[int, int]:
        """Requests running and waiting."""
        with self._state:
            self._forget_cancelled()
            return int(self._running is not None), len(self._waiting)

    def close(self, limit_s: float) -> None:
        """Take nothing new; let what runs go on for half of `limit_s`, then cut it off; write what is pending within the rest."""
        self._stop_s = time.monotonic() + limit_s
        with self._state:
            self.is_closing = True
            self._state.notify_all()
            self._state.wait_for(lambda: not self._running and not self._waiting, limit_s / 2)
            for request in (*self._waiting, *filter(None, [self._running])):
                request.cancel()
            self._state.notify_all()
        self._thread.join(max(0.0, self._stop_s - time.monotonic()))

    def _run(self) -> None:
        try:
            model = self._load()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the model
            self._model.set_exception(error)
            return
        self._model.set_result(model)
        while (request := self._next(model)) is not None:
            self._serve(model, request)
            self._warn_of_drafts(model.policy.acceptance.is_failing)
            request_id.set("")
            with self._state:
                self._running = None
                self._state.notify_all()
        if not model.bank.flush(max(0.0, self._stop_s - time.monotonic() - _LAST_S)):
            log.warning("stopped with %d records not written: they will be read again", model.bank.stats.health().pending_writes)
        model.bank.close()
        model.steps.release()

    def _next(self, model: Model) -> Request | None:
        """The next request, after what was called for; captures one unit after the other while there is none. None: closing."""
        while True:
            while self._calls:
                self._calls.popleft()(model)
            with self._state:
                self._forget_cancelled()
                request = plan(self._waiting, self._served_s)
                if request is not None:
                    self._waiting.remove(request)
                    self._served_s[request.job.tenant] = time.monotonic()
                    self._running = request
                    return request
                if self.is_closing and not self._calls:
                    return None
            if not self._capture(model):
                with self._state:
                    self._state.wait_for(lambda: self._waiting or self._calls or self.is_closing, 1.0)

    def _serve(self, model: Model, request: Request) -> None:
        request_id.set(request.job.id)
        request.start()
        try:
            done = Turn(model, request, between=lambda: self._capture_beside(model)).run()
        except Cancelled as cancelled:
            usage, report = cancelled.cost or (None, None)
            self._fail(EndedRequest(request, "cancelled", usage, report, self._unwanted()))
        except Exception as error:  # the server outlives whatever one request ran into; its cache is dropped with it
            log.exception("the request failed")
            if request.job.uses_bank:
                model.bank.note_unstored(request.prompt.tokens, request.job.tenant, "the request that read it failed")
            self._fail(EndedRequest(request, "error", None, None, explained(error)))
        else:
            self._mean_request_s += _MEAN_WEIGHT * (time.monotonic() - request.started_s - self._mean_request_s)
            self._end(EndedRequest(request, done.finish, done.usage, done.report, None), done)

    def _warn_of_drafts(self, is_failing: bool) -> None:
        if is_failing != self._is_draft_failing:
            log.warning(WARNING if is_failing else "drafts are accepted again")
        self._is_draft_failing = is_failing

    def _unwanted(self) -> Exception:
        """What to tell of a request that was cancelled: by its client, who is gone, or because the server stops."""
        if self.is_closing:
            return BusyError("the server is stopping", retry_after_s=10, hint="try again when it is back")
        return ForerunError("its client went away")

    def _fail(self, ended: EndedRequest) -> None:
        assert ended.error is not None
        # Without its traceback, which holds the frames and with them the cache: that is to be freed on this thread.
        self._end(ended, Failure(ended.error.with_traceback(None)))

    def _end(self, ended: EndedRequest, last: Done | Failure) -> None:
        """The one place where requests end, whatever became of them."""
        for observe in () if ended.request.archived else self.observers:
            observe(ended)
        ended.request.post(last)

    def _capture(self, model: Model) -> bool:
        """One unit for the disk; a failure is the bank's own affair and must not end a request."""
        try:
            return model.bank.capture_one()
        except Exception:
            log.exception("capturing for the disk failed")
            return False

    def _capture_beside(self, model: Model) -> None:
        """One unit between two steps of a request that runs, unless copying took more than SAVING_FRAC of the time lately."""
        start_s = time.monotonic()
        if start_s >= self._may_capture_s:
            self._capture(model)
            self._may_capture_s = start_s + (time.monotonic() - start_s) / SAVING_FRAC

    def _forget_cancelled(self) -> None:
        for request in [r for r in self._waiting if r.is_cancelled]:
            self._waiting.remove(request)
            self._fail(EndedRequest(request, "cancelled", None, None, self._unwanted()))
