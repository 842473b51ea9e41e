"""Runs the command in this process, as the installed `forerun` would."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from forerun.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that serves logs to a stderr that is closed when its test is over: later tests must not."""
    root, ours = logging.getLogger(), logging.getLogger("forerun")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


@pytest.fixture
def forerun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Call it with the arguments of a command; wide enough that no table wraps."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["forerun", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ran(int(ended.value.code or 0), printed.out, printed.err)

    return run
