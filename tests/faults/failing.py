"""Makes the n-th call to the system or to SQLite fail, once: before it does its work, or after."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from unittest import mock

CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir", "preadv")
Moment = Literal["before", "after"]


class Failure:
    """Counts the calls; the one of number `at` (from 0) fails. `calls` names them all."""

    def __init__(self, at: int, moment: Moment, code: int = errno.EIO) -> None:
        self.at, self.moment, self.code = at, moment, code
        self.calls: list[str] = []

    def watch(self, name: str, call: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        """The same call, counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            chosen = len(self.calls) - 1 == self.at
            if chosen and self.moment == "before":
                raise error
            result = call(*args, **kwargs)
            if chosen:
                if name == "open":
                    os.close(result)
                raise error
            return result

        return counted


class Connection(sqlite3.Connection):
    """A connection whose statements are counted while `failure` is set, if a file holds the database."""

    failure: Failure | None = None

    def __init__(self, database: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(database, *args, **kwargs)
        self._is_in_memory = database == ":memory:"

    def _run(self, name: str, *args: Any) -> Any:
        call = getattr(super(), name)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        return (self.failure.watch(f"sql {args[0]}", call, error) if self.failure and not self._is_in_memory else call)(*args)

    def execute(self, *args: Any) -> Any:
        return self._run("execute", *args)

    def executemany(self, *args: Any) -> Any:
        return self._run("executemany", *args)

    def executescript(self, *args: Any) -> Any:
        return self._run("executescript", *args)


@contextmanager
def failing(at: int, moment: Moment, code: int = errno.EIO) -> Iterator[Failure]:
    """While the block runs, call number `at` fails."""
    failure = Failure(at, moment, code)
    error = OSError(code, os.strerror(code))
    patches = [mock.patch.object(os, name, failure.watch(name, getattr(os, name), error)) for name in CALLS]
    patches.append(mock.patch.object(Connection, "failure", failure))
    for patch in patches:
        patch.start()
    try:
        yield failure
    finally:
        for patch in patches:
            patch.stop()
