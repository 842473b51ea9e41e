"""The one thread that touches MLX: loads the model, runs the batch, and captures state for the disk between its ticks and when idle."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from forerun.decode.depth import WARNING
from forerun.engine.admission import explain
from forerun.engine.batch import Batch
from forerun.engine.cost import summary
from forerun.engine.model import Model
from forerun.engine.request import EndedRequest, Failure, Request
from forerun.engine.scheduler import may_wait, next_request, retry_after_s
from forerun.engine.sequence import Phase, RunningSequence
from forerun.errors import BusyError, ForerunError
from forerun.kernels.buffers import release_buffers
from forerun.log import request_id
from forerun.values import Done, QueuePosition, Report

log = logging.getLogger(__name__)
T = TypeVar("T")
_MEAN_WEIGHT = 0.2
_RELEASE_S = 1.0  # of the time for closing, reserved for releasing the model
LOG_S = 10.0  # between two log lines on a prefill
QUEUED_S = 0.1  # a shorter wait is not worth a word
REST_S = 30.0  # without work, after which freed memory goes back to the system
HELD_S = 0.01  # between two looks at requests that wait for the disk alone
SAVING_FRAC = 0.05  # of a running request's time, at most, for capturing units for the disk


class Worker:
    """Serves requests, several at once: fair share between tenants, first come first served within one.

    observers: called with every client request that ended, on any thread. is_storing: a request has ended whose state is not yet pending in
    the bank. failure: why the thread ended other than by `close`; "" while it has not.
    """

    def __init__(self, load: Callable[[], Model]) -> None:
        self.observers: tuple[Callable[[EndedRequest], None], ...] = ()
        self._load = load
        self._waiting: deque[Request] = deque()
        self._calls: deque[Callable[[Model], None]] = deque()
        self._batch: Batch | None = None
        self._starting: Request | None = None
        self._reporting, self._ending = ThreadPoolExecutor(1, "report"), set[Request]()
        self._served_s: dict[str, float] = {}
        self._num_held = 0
        self._state = threading.Condition()
        self.is_closing = False
        self._stop_s = 0.0
        self._mean_request_s = 1.0
        self._may_capture_s = self._may_log_s = 0.0
        self._worked_s: float | None = None
        self._is_draft_failing = False
        self.is_storing = self._is_memory_short = False
        self.failure = ""
        self._model: Future[Model] = Future()
        self._thread = threading.Thread(target=self._run, name="mlx", daemon=True)
        self._thread.start()

    def model(self) -> Model:
        """The model; blocks until it is loaded. Raises what loading raised."""
        return self._model.result()

    def submit(self, request: Request) -> None:
        """Queue the request. What it would restore is not evicted while it waits. Raises BusyError: the queue is full, or the server is
        stopping.
        """
        if request.job.uses_bank:
            bank, job = self.model().bank, request.job
            request.running = bank.wait(request.prompt.tokens, tenant=job.tenant, session=job.session)
        if self._waiting or not self._num_free():
            self._protect(request)
        try:
            with self._state:
                self._check_queue(request)
                ahead = self._num_ahead(len(self._waiting))
                self._waiting.append(request)
                self._state.notify_all()
        except BusyError:
            request.unprotect()
            raise
        if ahead:
            log.info("waits for %d other request%s", ahead, "s" * (ahead > 1))
            request.post(QueuePosition(ahead))

    def _num_ahead(self, place: int) -> int:
        """How many requests must start or end before the one at this place of the queue starts. The first ones may start at once."""
        num_admitted = len({s.request for s in self._sequences}.intersection(self._waiting))
        return max(0, place - num_admitted + 1 - self._num_free())

    def _num_free(self) -> int:
        """How many more requests may run now."""
        return 0 if self._batch is None or self._is_memory_short else self._batch.num_free

    def _protect(self, request: Request) -> None:
        if request.job.uses_bank and not request.is_protected:
            bank, request.is_protected = self.model().bank, True
            prompt = bank.protect(request.prompt.tokens, tenant=request.job.tenant, session=request.job.session)
            request.unprotect = partial(bank.unprotect, prompt)

    def _check_queue(self, request: Request) -> None:
        """Raises BusyError."""
        self._forget_cancelled()
        if self.is_closing:
            raise BusyError("the server is stopping", retry_after_s=10)
        if not may_wait(self._waiting, request.job.tenant, self._num_free()):
            wait_s = retry_after_s(len(self._waiting), self._mean_request_s)
            raise BusyError(f"{len(self._waiting)} requests are waiting already", retry_after_s=wait_s, hint=f"try again in {wait_s} s")

    def call(self, work: Callable[[Model], T]) -> Future[T]:
        """Run `work` on this thread before the next request. Raises BusyError if the server is stopping."""
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
        """Number of requests running, those whose end is being reported included, and waiting."""
        with self._state:
            self._forget_cancelled()
            return len(self._ending.union(s.request for s in self._sequences)), len(self._waiting)

    def close(self, limit_s: float) -> None:
        """Refuse new requests, let queued ones run for half of `limit_s`, cancel the rest, and write pending records within `limit_s`."""
        self._stop_s = time.monotonic() + limit_s
        with self._state:
            self.is_closing = True
            self._state.notify_all()
            self._state.wait_for(lambda: not self._sequences and not self._waiting, limit_s / 2)
            for request in (*self._waiting, *(s.request for s in self._sequences)):
                request.cancel()
            self._state.notify_all()
        self._thread.join(max(0.0, self._stop_s - time.monotonic()))
        if not self._thread.is_alive():
            self._reporting.shutdown()

    @property
    def _sequences(self) -> tuple[RunningSequence, ...]:
        """Those that run."""
        return tuple(self._batch.running) if self._batch else ()

    def _run(self) -> None:
        try:
            model = self._load()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the model
            self._model.set_exception(error)
            return
        self._model.set_result(model)
        try:
            self._loop(model)
        except BaseException as error:  # noqa: BLE001 - a defect: reported by `failure`, upon which the process ends
            self._end_all(error)

    def _loop(self, model: Model) -> None:
        self._batch = batch = Batch(model, lambda sequence, error: self._ended(model, sequence, error))
        while not self._is_done():
            while self._calls:
                self._calls.popleft()(model)
            self._admit(model, batch)
            if batch.running:
                batch.tick()
                if not batch.is_stream_waiting:
                    self._capture_between(model)
                self._log_progress(batch)
                self._worked_s = time.monotonic()
            elif not self._capture(model):
                self._rest()
        if not model.bank.flush(max(0.0, self._stop_s - time.monotonic() - _RELEASE_S)):
            log.warning(
                "stopped with %d records not written: their tokens will be computed again", model.bank.stats.health().pending_writes
            )
        model.bank.close()
        model.steps.release()

    def _rest(self) -> None:
        """Wait for work. After `REST_S` without, freed memory goes back to the system, once: the next turn would have to get it again."""
        if self._worked_s and time.monotonic() >= self._worked_s + REST_S:
            release_buffers()
            self._worked_s = None
        limit_s = HELD_S if self._num_held else 1.0
        with self._state:
            self._state.wait_for(self._has_work, limit_s)

    def _has_work(self) -> bool:
        """Whether there is a call, the end, or a request that waits for more than the disk."""
        return bool(self._calls) or len(self._waiting) > self._num_held or (self.is_closing and not self._waiting)

    def _end_all(self, error: BaseException) -> None:
        """Fail every request: the thread ends by a defect, and nobody else would answer them."""
        log.critical("the MLX thread ended", exc_info=error)
        with self._state:
            self.failure = f"the MLX thread ended: {type(error).__name__}: {error}"
            self.is_closing = True
            left = [*(s.request for s in self._sequences), *self._waiting]
            self._waiting.clear()
            self._batch = None
        for request in left:
            self._fail(EndedRequest(request, "error", None, None, ForerunError(self.failure, hint="the server stops; start it again")))

    def _is_done(self) -> bool:
        """Whether the thread may end; wakes whoever waits for that."""
        with self._state:
            self._forget_cancelled()
            self._state.notify_all()
            return self.is_closing and not (self._waiting or self._calls or self._sequences)

    def _admit(self, model: Model, batch: Batch) -> None:
        """Start the next request, if there is one that may run now. Their places are posted to those that must wait."""
        with self._state:
            waiting = list(self._waiting)
        ready = self._ready(batch, waiting)
        self._num_held = len(waiting) - len(ready)
        with self._state:
            request = next_request(ready, self._served_s)
            self._starting = request if self._num_free() and request in self._waiting else None
        if self._starting:
            self._start(model, batch, self._starting)
        with self._state:
            self._starting = None
            for place, left in enumerate([r for r in waiting if r in self._waiting]):
                ahead = self._num_ahead(place) or int(left not in ready)
                if ahead and not left.knows_place:
                    left.post(QueuePosition(ahead))

    def _ready(self, batch: Batch, waiting: Sequence[Request]) -> list[Request]:
        """Those that wait for no state: neither for a prefix that is being computed nor, where there is a place, for the disk."""
        ready = [r for r in waiting if not batch.is_prefix_coming(r)]
        held = [r for r in ready if self._num_free() and batch.is_write_coming(r)]
        for request in held:
            self._protect(request)
        return [r for r in ready if r not in held]

    def _start(self, model: Model, batch: Batch, request: Request) -> None:
        request_id.set(request.job.id)
        request.start()
        try:
            self._is_memory_short = not batch.admit(request)
        except Exception as error:  # noqa: BLE001 - ends this request only
            self._failed(model, request, error)
        if not self._is_memory_short:
            self._leaves_queue(request)
            self._log_start(request)
        request_id.set("")

    def _leaves_queue(self, request: Request) -> None:
        request.unprotect()
        with self._state:
            self._waiting.remove(request)
            self._served_s[request.job.tenant] = time.monotonic()
            for place, waiting in enumerate(self._waiting):
                if ahead := self._num_ahead(place):
                    waiting.post(QueuePosition(ahead))

    def _ended(self, model: Model, sequence: RunningSequence, error: Exception | None) -> None:
        """A sequence ended: finished, cancelled (no error, and its phase is another), or failed."""
        request_id.set(sequence.request.job.id)
        self._is_memory_short = False
        try:
            if error is not None:
                raise error
            if sequence.phase is Phase.END:
                self._finished(sequence)
            else:
                self._cancelled(sequence)
        except Exception as failure:  # noqa: BLE001 - ends this request only; its cache is dropped
            self._failed(model, sequence.request, failure)
        else:
            self._store(model, sequence)
        self._log_draft_failure(model.policy.acceptance.is_failing)
        request_id.set("")

    def _finished(self, sequence: RunningSequence) -> None:
        done, request = sequence.done(), sequence.request
        self._mean_request_s += _MEAN_WEIGHT * (time.monotonic() - request.started_s - self._mean_request_s)
        self.is_storing = True
        self._end(EndedRequest(request, done.finish, done.usage, done.report, None), done)

    def _cancelled(self, sequence: RunningSequence) -> None:
        usage, report = sequence.cost() or (None, None)
        self.is_storing = True
        self._fail(EndedRequest(sequence.request, "cancelled", usage, report, self._cancel_error()))

    def _failed(self, model: Model, request: Request, error: Exception) -> None:
        log.error("the request failed", exc_info=error)
        if request.job.uses_bank and not request.running.is_removed:
            model.bank.note_unstored(request.prompt.tokens, request.job.tenant, "the request that computed it failed")
        self._fail(EndedRequest(request, "error", None, None, explain(error)))

    def _store(self, model: Model, sequence: RunningSequence) -> None:
        """Store the conversation of an ended request. A failure is logged and the reason of a later miss: the answer is out."""
        try:
            sequence.store()
        except Exception:
            log.exception("the conversation could not be stored")
            model.bank.note_unstored(sequence.request.prompt.tokens, sequence.request.job.tenant, "it could not be stored")
        finally:
            self.is_storing = False

    def _log_progress(self, batch: Batch) -> None:
        """Every LOG_S, how far the prompts are."""
        if time.monotonic() < self._may_log_s:
            return
        self._may_log_s = time.monotonic() + LOG_S
        for request in (s.request for s in batch.running if s.phase is Phase.PREFILL):
            progress = request.prefill_progress
            if progress and time.monotonic() >= request.started_s + LOG_S:
                request_id.set(request.job.id)
                left = "" if progress.remaining_s is None else f", about {progress.remaining_s:.0f} s left"
                counts = (f"{n:,}" for n in (progress.done_tokens, progress.total_tokens, progress.reused_tokens))
                log.info("prefill: %s of %s tokens, %s of them reused%s", *counts, left)
        request_id.set("")

    def _log_start(self, request: Request) -> None:
        queue_s = request.started_s - request.arrived_s
        waited = f" after {queue_s:.1f} s in the queue" if queue_s > QUEUED_S else ""
        log.info("starts%s: a prompt of %s tokens", waited, f"{request.prompt_tokens:,}")

    def _log_draft_failure(self, is_failing: bool) -> None:
        if is_failing != self._is_draft_failing:
            log.warning(WARNING if is_failing else "drafts are accepted again")
        self._is_draft_failing = is_failing

    def _cancel_error(self) -> Exception:
        """The error of a cancelled request: the server is stopping, else the client disconnected."""
        if self.is_closing:
            return BusyError("the server is stopping", retry_after_s=10, hint="try again when it is back")
        return ForerunError("the client disconnected")

    def _fail(self, ended: EndedRequest) -> None:
        assert ended.error is not None
        # Without its traceback, whose frames hold the cache: that must be freed on this thread.
        self._end(ended, Failure(ended.error.with_traceback(None)))

    def _end(self, ended: EndedRequest, last: Done | Failure) -> None:
        """The one place where requests end, however they end. One with a report ends on another thread, which explains its miss."""
        if ended.report is None:
            self._report(ended, last)
            return
        log.info(summary(ended.report))
        with self._state:
            self._ending.add(ended.request)
        self._reporting.submit(self._report_explained, ended, ended.report, last)

    def _report_explained(self, ended: EndedRequest, report: Report, last: Done | Failure) -> None:
        try:
            report = replace(report, miss=ended.request.describe_miss())
        except Exception:
            log.exception("a miss could not be explained")
        last = replace(last, report=report) if isinstance(last, Done) else last
        self._report(replace(ended, report=report), last)
        with self._state:
            self._ending.discard(ended.request)

    def _report(self, ended: EndedRequest, last: Done | Failure) -> None:
        for observe in () if ended.request.archived else self.observers:
            try:
                observe(ended)
            except Exception:
                log.exception("a request's end could not be recorded")
        ended.request.post(last)

    def _capture(self, model: Model) -> bool:
        """Capture one unit for the disk. Returns whether there was one. A failure is logged and must not end a request."""
        try:
            return model.bank.capture_one()
        except Exception:
            log.exception("capturing for the disk failed")
            return False

    def _capture_between(self, model: Model) -> None:
        """Capture one unit between two steps of a running request, unless that would exceed SAVING_FRAC of its time."""
        start_s = time.monotonic()
        if start_s >= self._may_capture_s:
            self._capture(model)
            self._may_capture_s = start_s + (time.monotonic() - start_s) / SAVING_FRAC

    def _forget_cancelled(self) -> None:
        """End those that were cancelled in the queue; one that is being started is cancelled as a running one."""
        for request in [r for r in self._waiting if r.is_cancelled and r is not self._starting]:
            self._waiting.remove(request)
            request.unprotect()
            self._fail(EndedRequest(request, "cancelled", None, None, self._cancel_error()))
