"""The result of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from forerun.errors import ForerunError

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of output. text: the result, with values. remedy: what to do, "" if nothing is wrong."""

    name: str
    status: Status
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> Finding:
    """Nothing is wrong."""
    return Finding(name, "ok", text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """It works, but worse than it could."""
    return Finding(name, "warning", text, remedy)


def failure(name: str, text: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(name, "failure", text, remedy)


def checks(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of a check; a ForerunError that it raises is one failure."""
    try:
        return list(check())
    except ForerunError as error:
        return [failure(name, str(error), error.hint or "see docs/errors.md")]
