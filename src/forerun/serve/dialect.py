"""What a dialect is to the application: how a request is read, and how its answer is written, streamed or whole. Knows no dialect."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from forerun.serve.problems import Problem
from forerun.values import Done, Event, Job, ModelInfo


class ParsedRequest(Protocol):
    """A request as a dialect understood it."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What is to be done, one after the other. At least one."""

    @property
    def streams(self) -> bool: ...


class Stream(Protocol):
    """An answer as server-sent events."""

    def frames(self, event: Event) -> Iterable[bytes]:
        """The frames of one event, in order; Done ends the answer."""

    def keepalive(self) -> bytes:
        """A sign of life, in the form that keeps this dialect's clients from giving up."""

    def failed(self, problem: Problem) -> bytes:
        """The last frames of an answer that breaks off."""


class WholeResponse(Protocol):
    """An answer in one piece."""

    def take(self, event: Event) -> None:
        """Add what this event tells."""

    def body(self) -> dict[str, Any]:
        """The answer, once Done was taken."""


A = TypeVar("A", bound=ParsedRequest)
A_co = TypeVar("A_co", bound=ParsedRequest, covariant=True)
A_contra = TypeVar("A_contra", bound=ParsedRequest, contravariant=True)
W_co = TypeVar("W_co", covariant=True)


class Parse(Protocol[A_co]):
    """Reads a request. Raises BadRequestError that names the field."""

    def __call__(self, body: dict[str, Any], info: ModelInfo, *, id: str, tenant: str) -> A_co: ...


class Write(Protocol[A_contra, W_co]):
    """Begins an answer."""

    def __call__(self, asked: A_contra, info: ModelInfo, *, created_unix_s: int) -> W_co: ...


@dataclass(frozen=True, slots=True)
class Dialect(Generic[A]):
    """One dialect. id_prefix: what the ids of its answers begin with."""

    id_prefix: str
    parse: Parse[A]
    streamed: Write[A, Stream]
    whole: Write[A, WholeResponse]


def report_of(done: Done, ignored_fields: Collection[str]) -> dict[str, Any]:
    """The `forerun` object of an answer."""
    return asdict(done.report) | {"ignored_fields": list(ignored_fields)}
