"""The OpenAI Responses dialect: a run's events to a response, streamed or whole. `openai_responses.py` parses the requests.

Pure. A response is a list of items: reasoning, a message, calls (`openai_responses_items.py`). A stream's events are numbered.
Knows no engine and no HTTP. Source: OpenAI's API reference, Responses; the events that Codex requires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from forerun.serve.dialect import report_of
from forerun.serve.openai_responses_items import CUT_OFF, DeclaredTool, Items, Value
from forerun.serve.problems import Problem
from forerun.serve.sse import event as frame
from forerun.values import Done, Event, Job, ModelInfo, PrefillProgress, QueuePosition, Usage


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request. summarises: thoughts go into the summary. echo: fields that the response repeats; `store` is set to false in it if
    the response cannot be stored.
    """

    job: Job
    streams: bool
    ignored_fields: tuple[str, ...]
    summarises: bool
    declared: Mapping[str, DeclaredTool]
    echo: Value

    @property
    def jobs(self) -> tuple[Job]:
        return (self.job,)


class _Response:
    """Common to streamed and whole responses."""

    def __init__(self, parsed: ParsedRequest, info: ModelInfo, *, created_unix_s: int) -> None:
        self._request = parsed
        self._items = Items(parsed.job.id.removeprefix("resp_"), parsed.declared, summarises=parsed.summarises)
        head = {"id": parsed.job.id, "object": "response", "created_at": created_unix_s, "model": info.name, "error": None}
        fixed: Value = {"previous_response_id": None, "store": False, "tools": [], "truncation": "disabled", "user": None}
        self._head = head | fixed | parsed.echo

    def _unfinished(self, status: str) -> Value:
        return self._head | {"status": status, "incomplete_details": None, "output": [], "usage": None}

    def _finished(self, done: Done) -> Value:
        cut = done.finish in CUT_OFF
        outcome = {"status": "incomplete" if cut else "completed", "incomplete_details": {"reason": "max_output_tokens"} if cut else None}
        report = report_of(done, self._request.ignored_fields)
        return self._head | self._request.echo | outcome | {"output": self._items.items, "usage": usage(done.usage), "forerun": report}


class WholeResponse(_Response):
    """A response in one piece."""

    _done: Done | None = None

    def take(self, event: Event) -> None:
        """Add an event."""
        for _ in self._items.take(event):
            pass
        self._done = event if isinstance(event, Done) else self._done

    def body(self) -> Value:
        """The response object, after Done."""
        assert self._done is not None
        return self._finished(self._done)

    def pending(self, status: str, error: Value | None = None) -> Value:
        """The response object without Done: before it, or where it never comes. error: why not."""
        return self._unfinished(status) | {"output": list(self._items.items), "error": error}


class StreamedResponse(_Response):
    """A response as server-sent events. Codex does not count comments as activity, so each keepalive is an event."""

    _num_sent = 0

    def frames(self, event: Event) -> Iterator[bytes]:
        """The frames of one event."""
        yield from self._begin()
        match event:
            case QueuePosition() | PrefillProgress():
                yield self._in_progress(asdict(event))
            case _:
                yield from map(self._frame, self._items.take(event))
        if isinstance(event, Done):
            response = self._finished(event)
            yield self._frame({"type": f"response.{response['status']}", "response": response})

    def created(self) -> bytes:
        """The first event, unless it is sent."""
        return b"".join(self._begin())

    def keepalive(self) -> bytes:
        """A response.in_progress event without progress."""
        return b"".join([*self._begin(), self._in_progress({})])

    def failed(self, problem: Problem) -> bytes:
        """The failed response."""
        return self.ended(self._unfinished("failed") | {"error": error_of(problem)})

    def ended(self, response: Value) -> bytes:
        """The last event of a response that does not come to its end."""
        return b"".join([*self._begin(), self._frame({"type": "response.failed", "response": response})])

    def _begin(self) -> Iterator[bytes]:
        if self._num_sent == 0:
            yield self._frame({"type": "response.created", "response": self._unfinished("in_progress")})

    def _in_progress(self, progress: Value) -> bytes:
        report = {"forerun": progress} if progress else {}
        return self._frame({"type": "response.in_progress", "response": self._unfinished("in_progress"), **report})

    def _frame(self, value: Value) -> bytes:
        self._num_sent += 1
        return frame(value["type"], {"type": value["type"], "sequence_number": self._num_sent - 1} | value)


def error_of(problem: Problem) -> Value:
    """The error of a failed response."""
    return {"code": "server_error" if problem.status >= 500 else problem.code, "message": problem.message}


def usage(counts: Usage) -> Value:
    """Token counts under the names of this dialect."""
    return {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counts.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
    }
