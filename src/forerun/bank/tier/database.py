"""The SQLite database of an index: opening, schema, and errors.

Knows nothing of what the rows are used for.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from forerun.bank.tier import files
from forerun.errors import BankError, BankFullError

log = logging.getLogger(__name__)
T = TypeVar("T")

VERSION = 8

# Whether a segment hangs from the node whose tokens begin with the anchor.
HOLDS_ANCHOR = (
    "SELECT 1 FROM record WHERE parent = {node} AND kind = 'segment'"
    " AND tokens >= {anchor} AND substr(tokens, 1, length({anchor})) = {anchor}"
)

# Tokens are ordered by their bytes: in `place`, rows with a common prefix are neighbours.
_SCHEMA = f"""
BEGIN;
CREATE TABLE record (
  key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, root TEXT NOT NULL, parent TEXT NOT NULL, start INTEGER NOT NULL,
  num_bytes INTEGER NOT NULL, file_bytes INTEGER NOT NULL, created_s REAL NOT NULL, used_s REAL NOT NULL, rank_s REAL NOT NULL,
  uses INTEGER NOT NULL, session TEXT NOT NULL, tenant TEXT NOT NULL, tokens BLOB NOT NULL
);
CREATE UNIQUE INDEX place ON record (parent, kind, tokens);
CREATE INDEX rank ON record (rank_s, start DESC);
CREATE TABLE total (record_bytes INTEGER NOT NULL, sessions INTEGER NOT NULL, day TEXT NOT NULL, written_bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0, 0, '', 0);
CREATE TRIGGER record_added AFTER INSERT ON record BEGIN UPDATE total SET record_bytes = record_bytes + NEW.file_bytes; END;
CREATE TRIGGER record_removed AFTER DELETE ON record BEGIN UPDATE total SET record_bytes = record_bytes - OLD.file_bytes; END;
CREATE TABLE session (
  tenant TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, used_s REAL NOT NULL, turns INTEGER NOT NULL, num_tokens INTEGER NOT NULL,
  is_pinned INTEGER NOT NULL, keys BLOB NOT NULL, title TEXT NOT NULL, client TEXT NOT NULL, PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX ended ON session (num_tokens);
CREATE INDEX pinned ON session (is_pinned) WHERE is_pinned = 1;
CREATE INDEX owner ON record (tenant, session) WHERE session <> '';
CREATE TRIGGER session_added AFTER INSERT ON session BEGIN UPDATE total SET sessions = sessions + 1; END;
CREATE TRIGGER session_removed AFTER DELETE ON session BEGIN UPDATE total SET sessions = sessions - 1; END;
CREATE TABLE lost (
  number INTEGER PRIMARY KEY, parent TEXT NOT NULL, start INTEGER NOT NULL, kind TEXT NOT NULL, why TEXT NOT NULL,
  lost_s REAL NOT NULL, tokens BLOB NOT NULL
);
CREATE UNIQUE INDEX lost_place ON lost (parent, tokens);
CREATE TABLE memo (
  root TEXT NOT NULL, name TEXT NOT NULL, node TEXT NOT NULL, anchor BLOB NOT NULL, checksum TEXT NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (root, name, node, anchor)
) WITHOUT ROWID;
CREATE INDEX memo_node ON memo (node);
CREATE TRIGGER memo_removed AFTER DELETE ON record WHEN OLD.kind = 'segment' BEGIN
  DELETE FROM memo WHERE node = OLD.parent AND NOT EXISTS ({HOLDS_ANCHOR.format(node="memo.node", anchor="memo.anchor")});
END;
CREATE TABLE identity (root TEXT NOT NULL PRIMARY KEY, tenant TEXT NOT NULL, fields TEXT NOT NULL, used_s REAL NOT NULL);
PRAGMA user_version = {VERSION};
COMMIT;
"""
# Not in the first databases of this version: added to those.
_ADDED = """
BEGIN;
CREATE TABLE IF NOT EXISTS response (
  number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, previous TEXT NOT NULL, session TEXT NOT NULL,
  used_s REAL NOT NULL, num_bytes INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS response_name ON response (tenant, id);
CREATE TABLE IF NOT EXISTS response_data (number INTEGER PRIMARY KEY, checksum TEXT NOT NULL, data BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS response_removed AFTER DELETE ON response BEGIN
  DELETE FROM response_data WHERE number = OLD.number;
END;
COMMIT;
"""
# Deleted rows free their bytes and leave no trace; the log is bounded by 256 pages (1 MiB).
_SETTINGS = ("auto_vacuum = FULL", "journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "wal_autocheckpoint = 256")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_REBUILD = "if it happens again: stop the server and delete index.db, which is then rebuilt from the records"


def paths(path: Path) -> tuple[Path, ...]:
    """All files of the database at `path` while it is open."""
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def writable(path: Path, set_aside: Callable[[int], None]) -> sqlite3.Connection:
    """The database, created if missing, recreated if damaged. One of an earlier format is replaced, after `set_aside` was called with its
    version. Raises BankError if a newer forerun wrote it, OSError.
    """
    with files.opened(path, os.O_RDWR | os.O_CREAT):
        pass  # mode 0600, which SQLite gives to the log too
    with explained(path):
        try:
            with _opened(path.absolute().as_uri()) as connection:
                version = _version(connection)
                if version >= VERSION:
                    _check_version(version, path)
                    _set(connection)
                    connection.executescript(_ADDED)
                    return connection
                connection.close()
            if version:
                set_aside(version)
        except sqlite3.DatabaseError as error:
            if _code(error) not in _DAMAGED:
                raise
            log.warning("%s is damaged: it is rebuilt from the records", path)
        return _created(path)


def readable(path: Path) -> sqlite3.Connection:
    """The database at `path`, read-only; another process may be writing it. Raises BankError."""
    with explained(path), _opened(f"{path.absolute().as_uri()}?mode=ro") as connection:
        _check_version(_version(connection), path)
        return connection


def in_memory() -> sqlite3.Connection:
    """An empty database in memory."""
    with _opened(":memory:") as connection:
        connection.executescript(_SCHEMA + _ADDED)
        return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction: rolled back if the block fails."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path | None) -> Iterator[None]:
    """Turn a failure of SQLite into a BankError; a full disk into a BankFullError."""
    try:
        yield
    except sqlite3.Error as error:
        if _code(error) == sqlite3.SQLITE_FULL:
            raise BankFullError(f"{path}: {error}", reason="disk", hint="free some space on the disk") from error
        raise BankError(f"index {path}: {error}", hint=_REBUILD) from error


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for errors of Python's own module."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _created(path: Path) -> sqlite3.Connection:
    for part in paths(path):
        part.unlink(missing_ok=True)
    with files.opened(path, os.O_RDWR | os.O_CREAT):
        pass
    with _opened(path.absolute().as_uri()) as connection:
        _set(connection)
        connection.executescript(_SCHEMA + _ADDED)
        return connection


def _set(connection: sqlite3.Connection) -> None:
    for setting in _SETTINGS:
        connection.execute(f"PRAGMA {setting}")


def _check_version(version: int, path: Path) -> None:
    """Raises BankError for another format than ours."""
    if version != VERSION:
        newer, earlier = (
            "use that version, or another folder with --bank-dir",
            "start the server: it sets what is in an earlier format aside",
        )
        hint = newer if version > VERSION else earlier
        raise BankError(f"{path} has format {version}, this version of forerun reads format {VERSION}", hint=hint)


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


@contextmanager
def _opened(uri: str) -> Iterator[sqlite3.Connection]:
    """A connection that is closed only if the block fails."""
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


class RowKey(NamedTuple):
    """What identifies a row of a table: these columns, which stand `at` these positions of the rows that are read."""

    table: str
    names: tuple[str, ...]
    at: tuple[int, ...]


def checked(value: Any, kind: type[T]) -> T:
    """A column's value. Raises ValueError if it is not of this type, or a negative number: SQLite stores anything anywhere."""
    if type(value) is not kind or (isinstance(value, int | float) and value < 0):
        raise ValueError(f"{kind.__name__} was expected, found {str(value)[:50]!r}")
    return value


class Database:
    """An open database, for several threads. path None: in memory. All methods raise BankError if it fails."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._connection, self._path = connection, path
        self._lock = threading.RLock()  # its holder sees no change, also between two statements

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, explained(self._path):
            return self._connection.execute(sql, values).fetchall()

    def _decoded(self, decode: Callable[[tuple[Any, ...]], T], key: RowKey, sql: str, *values: object) -> list[T]:
        """The rows as `decode` returns them. Raises BankError also if there are some that it cannot decode: these are removed, so that what
        else there is can be read the next time.
        """
        found, damaged, errors = [], [], []
        for row in self._rows(sql, *values):
            try:
                found.append(decode(row))
            except (TypeError, ValueError) as error:
                damaged.append(tuple(row[at] for at in key.at))
                errors.append(error)
        if damaged:
            where = " AND ".join(f"{name} IS ?" for name in key.names)
            self._many((f"DELETE FROM {key.table} WHERE {where}", damaged))
            message = f"index {self._path}: a row is damaged, and was removed: {errors[0]}"
            raise BankError(message, hint="its record, if it is one, is found again at the next start") from errors[0]
        return found

    def _many(self, *work: tuple[str, list[Any]]) -> None:
        """Run each statement for each of its rows, in one transaction."""
        with self._lock, explained(self._path), transaction(self._connection):
            for sql, rows in work:
                self._connection.executemany(sql, rows)
