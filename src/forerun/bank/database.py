"""The SQLite database under an index: how it is opened, what its tables are, and what its failures are called.

Knows nothing of what the rows are used for.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.bank import files
from forerun.errors import BankError, BankFullError

VERSION = 2

# Tokens are ordered by their bytes: in `place`, rows that begin alike are neighbours.
_SCHEMA = f"""
BEGIN;
CREATE TABLE record (
  key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, root TEXT NOT NULL, parent TEXT NOT NULL, start INTEGER NOT NULL,
  num_bytes INTEGER NOT NULL, created_s REAL NOT NULL, used_s REAL NOT NULL, rank_s REAL NOT NULL,
  uses INTEGER NOT NULL, session TEXT NOT NULL, tenant TEXT NOT NULL, tokens BLOB NOT NULL
);
CREATE UNIQUE INDEX place ON record (parent, kind, tokens);
CREATE INDEX rank ON record (rank_s, start DESC);
PRAGMA user_version = {VERSION};
COMMIT;
"""
# Rows that are removed give their bytes back and leave no trace; 256 pages (1 MiB) bound the log.
_SETTINGS = ("auto_vacuum = FULL", "journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "wal_autocheckpoint = 256")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def paths(path: Path) -> tuple[Path, ...]:
    """All files that belong to the database at `path` while it is open."""
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def writable(path: Path) -> sqlite3.Connection:
    """The database, made if it is not there, made anew if it is damaged. Raises BankError if a newer forerun wrote it, OSError."""
    with files.opened(path, os.O_RDWR | os.O_CREAT):
        pass  # mode 0600, which SQLite gives to the log too
    with explained(path):
        try:
            return _prepared(path)
        except sqlite3.DatabaseError as error:
            if _code(error) not in _DAMAGED:
                raise
        for part in paths(path):
            part.unlink(missing_ok=True)
        return _prepared(path)


def readable(path: Path) -> sqlite3.Connection:
    """The database at `path`, which another process may be writing, for looking only."""
    with explained(path), _opened(f"{path.absolute().as_uri()}?mode=ro") as connection:
        _check_version(connection, path)
        return connection


def in_memory() -> sqlite3.Connection:
    """An empty database that no file holds."""
    with _opened(":memory:") as connection:
        connection.executescript(_SCHEMA)
        return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
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
        hint = "if it stays so: stop the server and delete index.db, it is built anew from the records"
        raise BankError(f"index {path}: {error}", hint=hint) from error


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for what Python's own module says."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _prepared(path: Path) -> sqlite3.Connection:
    with _opened(path.absolute().as_uri()) as connection:
        is_new = _version(connection) == 0
        if not is_new:
            _check_version(connection, path)
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        if is_new:
            connection.executescript(_SCHEMA)
        return connection


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    version = _version(connection)
    if version != VERSION:
        hint = "use that version, or another folder with --bank-dir"
        raise BankError(f"{path} has format {version}, this version of forerun reads format {VERSION}", hint=hint)


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


@contextmanager
def _opened(uri: str) -> Iterator[sqlite3.Connection]:
    """A connection that stays open unless the block fails."""
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
