"""Keeps the request log: told of every request that ends, it writes the entry. Content stays out of it unless it is asked for."""

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
    """Entries of one model's requests in `file`."""

    file: LogFile
    model: str
    with_content: bool

    def write(self, ended: EndedRequest) -> None:
        """Append what the log says of a request."""
        self.file.append(encode(self._entry(ended)))

    def forget(self, tenant: str, is_gone: Callable[[str], bool]) -> None:
        """Take all texts of those of the tenant's conversations that are gone, by their ids, out of the log."""
        self.file.rewrite(lambda line: without_texts(line, {tenant}.__contains__, is_gone))

    def _entry(self, ended: EndedRequest) -> Entry:
        request, job = ended.request, ended.request.job
        return Entry(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            id=job.id,
            model=self.model,
            tenant=job.tenant,
            outcome=ended.outcome,
            error=_told(ended.error) if ended.error else None,
            seconds=time.monotonic() - request.arrived_s,
            prompt_tokens=request.prompt_tokens,
            prefill_progress=request.prefill_progress,
            usage=ended.usage,
            report=ended.report if self.with_content or ended.report is None else _without_text(ended.report),
            content=Content(job.prompt, request.answer_text) if self.with_content else None,
        )


def _told(error: Exception) -> str:
    """Our own words are free of content; those of others may quote what they failed on."""
    return f"{type(error).__name__}: {error}" if isinstance(error, ForerunError) else type(error).__name__


def _without_text(report: Report) -> Report:
    """The report, its miss without the texts that it quotes."""
    return replace(report, miss=replace(report.miss, prompt_text="", stored_text="")) if report.miss else report
