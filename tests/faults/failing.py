"""Makes the n-th call to the system or to SQLite fail: once, before it does its work or after; or all that write from then on."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from unittest import mock

CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir", "preadv")
Moment = Literal["before", "after", "from then on"]
_SQLITE = {errno.EROFS: sqlite3.SQLITE_READONLY, errno.ENOSPC: sqlite3.SQLITE_FULL}
_READS = ("SELECT", "PRAGMA", "BEGIN", "ROLLBACK")


class Failure:
    """Counts the calls; the one of number `at` (from 0) fails, or every call that writes from that one on. `calls` names them all,
    `failed` those that did.
    """

    def __init__(self, at: int, moment: Moment, code: int = errno.EIO) -> None:
        self.at, self.moment, self.code = at, moment, code
        self.calls: list[str] = []
        self.failed: list[str] = []

    def fails(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether this call, the last one counted, does."""
        number = len(self.calls) - 1
        return number == self.at if self.moment != "from then on" else number >= self.at >= 0 and self._writes(name, args)

    def _writes(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether the call needs free bytes on the disk (ENOSPC), or a writable disk (EROFS)."""
        if name.startswith("sql"):
            return not name.removeprefix("sql ").startswith(_READS)
        if name == "open":
            return bool(args[1] & os.O_CREAT)
        return name in (("write", "mkdir") if self.code == errno.ENOSPC else ("write", "mkdir", "replace", "unlink"))

    def watch(self, name: str, call: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        """The same call, counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            chosen = self.fails(name, args)
            self.failed += [name] * chosen
            if chosen and self.moment != "after":
                raise error
            result = call(*args, **kwargs)
            if chosen:
                if name == "open":
                    os.close(result)
                raise error
            return result

        return counted


class Connection(sqlite3.Connection):
    """A connection whose statements are counted while `failure` is set, unless it is in memory."""

    failure: Failure | None = None

    def __init__(self, database: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(database, *args, **kwargs)
        self._is_in_memory = database == ":memory:"

    def _run(self, name: str, *args: Any) -> Any:
        call = getattr(super(), name)
        error = sqlite3.OperationalError("a failure of the disk")
        error.sqlite_errorcode = _SQLITE.get(self.failure.code, sqlite3.SQLITE_IOERR) if self.failure else 0
        return (self.failure.watch(f"sql {args[0]}", call, error) if self.failure and not self._is_in_memory else call)(*args)

    def execute(self, *args: Any) -> Any:
        return self._run("execute", *args)

    def executemany(self, *args: Any) -> Any:
        return self._run("executemany", *args)

    def executescript(self, *args: Any) -> Any:
        return self._run("executescript", *args)


@contextmanager
def failing(at: int, moment: Moment, code: int = errno.EIO) -> Iterator[Failure]:
    """While the block runs, call number `at` fails, -1: none does."""
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
