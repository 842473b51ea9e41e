"""An entry of the request log, and its encoding as a line. Knows values; no files and no engine."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from forerun.errors import ForerunError
from forerun.values import PrefillProgress, Prompt, Report, Usage


@dataclass(frozen=True, slots=True)
class Content:
    """Prompt and answer; logged only with `request_log_content`."""

    prompt: Prompt
    answer: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One ended request. time: of its end, UTC, ISO 8601. seconds: since its arrival. tenant: the name of its key, "" without keys.

    outcome: "stop", "length", "calls" or "loop" (served), "cancelled" or "error". error: what ended it, None if it was served.
    prefill_progress: the last reported, None before prefill. usage, report: as in the response, None if it ended before the answer.
    """

    time: str
    id: str
    model: str
    tenant: str
    outcome: str
    error: str | None
    seconds: float
    prompt_tokens: int
    prefill_progress: PrefillProgress | None
    usage: Usage | None
    report: Report | None
    content: Content | None


_FORM = TypeAdapter(Entry)


def encode(entry: Entry) -> str:
    """The entry as one line of JSON, without a line break."""
    return _FORM.dump_json(entry).decode()


def decode(line: str) -> Entry:
    """The entry of a line. Unknown fields are ignored. Raises ForerunError."""
    try:
        return _FORM.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        raise ForerunError(f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}") from error
