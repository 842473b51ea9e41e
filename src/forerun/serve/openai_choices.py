"""Common to OpenAI's chat and completions dialects: a response is a list of choices, streamed or whole.

A choice is a job; the events are those of one job after the other, and each job's Done ends its choice. Pure. Knows no engine, no HTTP,
no tokens, and not how a choice is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from forerun.serve.dialect import report_of
from forerun.serve.fields import Fields
from forerun.serve.problems import Problem
from forerun.serve.sse import END, comment, data, progress
from forerun.serve.tool_choice import names_one
from forerun.values import Done, Event, Finish, Job, ModelInfo, Usage

MAX_CHOICES = 128
# Clients know these words alone. An answer that was ended because it repeats itself is cut off; its report has the reason.
FINISH: dict[Finish, str] = {"stop": "stop", "length": "length", "calls": "tool_calls", "loop": "length"}
Value = dict[str, Any]


class StreamOptions(Fields):
    """Options of a stream."""

    include_usage: bool = False


class Choice(Protocol):
    """One choice while it is written, in the dialect's fields without index and finish_reason."""

    def take(self, event: Event) -> Iterable[Value]:
        """Add an event. Returns the fields of its chunks."""

    def last(self, done: Done) -> Value:
        """The fields of the last chunk."""

    def value(self) -> Value:
        """The fields of the whole choice."""


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """How a dialect writes: the `object` of a whole response and of a stream's chunk, and its choices."""

    whole: str
    chunk: str
    choice: Callable[[Job], Choice]


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request. id: of the response. jobs: `repeats` for each prompt, one after the other."""

    id: str
    jobs: tuple[Job, ...]
    repeats: int
    format: ResponseFormat
    streams: bool
    includes_usage: bool
    ignored_fields: tuple[str, ...]


def repeated(jobs: Sequence[Job], repeats: int) -> tuple[Job, ...]:
    """Each job `repeats` times. Each has its own id, and those of one prompt have consecutive seeds."""
    every = [(job, repeat) for job in jobs for repeat in range(repeats)]
    return tuple(jobs) if len(every) == 1 else tuple(_renamed(*each, index) for index, each in enumerate(every))


def _renamed(job: Job, repeat: int, index: int) -> Job:
    seed = job.sampling.seed
    return replace(job, id=f"{job.id}-{index}", sampling=replace(job.sampling, seed=None if seed is None else seed + repeat))


class Choices:
    """The choices so far."""

    def __init__(self, parsed: ParsedRequest) -> None:
        self._request = parsed
        self._choices = [parsed.format.choice(job) for job in parsed.jobs]
        self._done: list[Done] = []

    @property
    def is_done(self) -> bool:
        """Whether all choices are complete."""
        return len(self._done) == len(self._choices)

    def take(self, event: Event) -> Iterator[Value]:
        """Add an event. Yields the choices of its chunks."""
        index = len(self._done)
        choice = self._choices[index]
        for fields in choice.take(event):
            yield {"index": index, **fields, "finish_reason": None}
        if isinstance(event, Done):
            self._done.append(event)
            yield self._ended(index, choice.last(event))

    def values(self) -> list[Value]:
        """The whole choices, after the last Done."""
        return [self._ended(index, choice.value()) for index, choice in enumerate(self._choices)]

    def usage(self) -> Value:
        """Token counts of all choices: a prompt counts once, however many choices it has."""
        counts = [done.usage for done in self._done]
        prompts = counts[:: self._request.repeats]
        prompt = (sum(each.prompt_tokens for each in prompts), sum(each.cached_tokens for each in prompts))
        return usage(Usage(*prompt, sum(each.completion_tokens for each in counts), sum(each.reasoning_tokens for each in counts)))

    def report(self) -> Value:
        """The `forerun` object of the response. With several choices, each has its own."""
        ignored = self._request.ignored_fields
        return {"forerun": report_of(self._done[0], ignored) if len(self._choices) == 1 else {"ignored_fields": list(ignored)}}

    def _ended(self, index: int, fields: Value) -> Value:
        done = self._done[index]
        cost = {"forerun": report_of(done, ())} if len(self._choices) > 1 else {}
        is_named = done.finish == "calls" and names_one(self._request.jobs[index].calls)
        # OpenAI ends the call of a function that was chosen by its name so.
        return {"index": index, **fields, "finish_reason": "stop" if is_named else FINISH[done.finish], **cost}


class _Response:
    """Common to streamed and whole responses."""

    def __init__(self, parsed: ParsedRequest, info: ModelInfo, *, created_unix_s: int) -> None:
        self._request, self._choices = parsed, Choices(parsed)
        self._head = {"id": parsed.id, "object": parsed.format.whole, "created": created_unix_s, "model": info.name}


class WholeResponse(_Response):
    """A response in one piece."""

    def take(self, event: Event) -> None:
        """Add an event."""
        for _ in self._choices.take(event):
            pass

    def body(self) -> Value:
        """The response, after the last Done."""
        return self._head | {"choices": self._choices.values(), "usage": self._choices.usage()} | self._choices.report()


class StreamedResponse(_Response):
    """A response as server-sent events."""

    def frames(self, event: Event) -> Iterator[bytes]:
        """The frames of one event."""
        yield from progress(event)
        for choice in self._choices.take(event):
            yield self._chunk([choice])
        if self._choices.is_done and self._request.includes_usage:
            yield self._chunk([])
        if self._choices.is_done:
            yield END

    def keepalive(self) -> bytes:
        """A comment: every client of these dialects counts it as activity."""
        return comment("keepalive")

    def failed(self, problem: Problem) -> bytes:
        """The error object as the last frame."""
        return data(problem.body())

    def _chunk(self, choices: list[Value]) -> bytes:
        """A chunk; the last one has the report, and the usage if that was requested, in a chunk without choices."""
        is_last = self._choices.is_done and bool(choices) != self._request.includes_usage
        counts = {"usage": None if choices else self._choices.usage()} if self._request.includes_usage else {}
        chunk = self._head | {"object": self._request.format.chunk, "choices": choices} | counts
        return data(chunk | (self._choices.report() if is_last else {}))


def usage(counts: Usage) -> Value:
    """Token counts under OpenAI's names."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
    }
