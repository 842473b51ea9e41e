"""Writes an entry of the request log for every ended request. Prompts and answers stay out unless the settings include them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from forerun.engine.request import EndedRequest
from forerun.errors import ForerunError
from forerun.request_log.entry import Content, Entry, encode
from forerun.request_log.file import LogFile
from forerun.request_log.forget import without_texts
from forerun.values import Report


@dataclass(frozen=True, slots=True)
class RequestLog:
    """The request log of one model. with_content: log prompts and answers too, but of conversations that were removed meanwhile."""

    file: LogFile
    model: str
    with_content: bool

    def write(self, ended: EndedRequest) -> None:
        """Append the entry of a request."""
        self.file.append(encode(self._entry(ended)))

    def forget(self, tenant: str, is_gone: Callable[[str], bool]) -> None:
        """Remove from the log the texts of the tenant's conversations that are gone. is_gone: whether one is, by its id."""
        self.file.rewrite(lambda line: without_texts(line, {tenant}.__contains__, is_gone))

    def _entry(self, ended: EndedRequest) -> Entry:
        request, job = ended.request, ended.request.job
        with_content = self.with_content and not request.running.is_removed
        return Entry(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            id=job.id,
            model=self.model,
            tenant=job.tenant,
            outcome=ended.outcome,
            error=_error_text(ended.error) if ended.error else None,
            seconds=time.monotonic() - request.arrived_s,
            prompt_tokens=request.prompt_tokens,
            prefill_progress=request.prefill_progress,
            usage=ended.usage,
            report=ended.report if with_content or ended.report is None else _without_text(ended.report),
            content=Content(job.prompt, request.answer_text) if with_content else None,
        )


def _error_text(error: Exception) -> str:
    """With the message of a ForerunError only: those of other exceptions may quote content."""
    return f"{type(error).__name__}: {error}" if isinstance(error, ForerunError) else type(error).__name__


def _without_text(report: Report) -> Report:
    """The report without the texts that its miss quotes."""
    return replace(report, miss=replace(report.miss, prompt_text="", stored_text="")) if report.miss else report
