"""What a look at one thing has found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from forerun.errors import ForerunError

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. text: what was found, with values. remedy: what to do, "" if all is well."""

    name: str
    status: Status
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """It works, but worse than it could."""
    return Finding(name, "warning", text, remedy)


def failure(name: str, text: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(name, "failure", text, remedy)


def checks(name: str, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of `look`; an error of forerun's that it raises is a finding too."""
    try:
        return list(look())
    except ForerunError as error:
        return [failure(name, str(error), error.hint or "see docs/errors.md")]
