"""The interface of a dialect: parse a request, write its response, streamed or whole. Knows no dialect."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from forerun.serve.problems import Problem
from forerun.values import Done, Event, Job, ModelInfo


class ParsedRequest(Protocol):
    """A request after parsing."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs, to be run one after the other. At least one."""

    @property
    def streams(self) -> bool: ...


class Stream(Protocol):
    """A response as server-sent events."""

    def frames(self, event: Event) -> Iterable[bytes]:
        """The frames of one event, in order; Done ends the response."""

    def keepalive(self) -> bytes:
        """A keepalive frame that this dialect's clients count as activity."""

    def failed(self, problem: Problem) -> bytes:
        """The last frames of a response that fails."""


class WholeResponse(Protocol):
    """A response in one piece."""

    def take(self, event: Event) -> None:
        """Add an event."""

    def body(self) -> dict[str, Any]:
        """The response, after Done."""


A = TypeVar("A", bound=ParsedRequest)
A_co = TypeVar("A_co", bound=ParsedRequest, covariant=True)
A_contra = TypeVar("A_contra", bound=ParsedRequest, contravariant=True)
W_co = TypeVar("W_co", covariant=True)


class Parse(Protocol[A_co]):
    """Parses a request. Raises BadRequestError that names the field."""

    def __call__(self, body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> A_co: ...


class Write(Protocol[A_contra, W_co]):
    """Begins a response."""

    def __call__(self, parsed: A_contra, info: ModelInfo, *, created_unix_s: int) -> W_co: ...


@dataclass(frozen=True, slots=True)
class Dialect(Generic[A]):
    """One dialect. id_prefix: of the ids of its responses."""

    id_prefix: str
    parse: Parse[A]
    streamed: Write[A, Stream]
    whole: Write[A, WholeResponse]


def report_of(done: Done, ignored_fields: Collection[str]) -> dict[str, Any]:
    """The `forerun` object of a response."""
    return asdict(done.report) | {"finish": done.finish, "ignored_fields": list(ignored_fields)}
