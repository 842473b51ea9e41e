"""What is in a tier, a row a record: one SQLite database. Answers what hangs from a node without reading or listing the rest.

The rows say nothing that the records' own heads do not say, but for the uses and the session: a lost index is built anew from the records.
Knows nothing of files of records, payloads or policy. Holding the index of a folder for writing is holding the folder.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.bank import database, files
from forerun.errors import BankError
from forerun.state.record import Kind, RecordInfo, token_bytes, tokens_of

_FILE = "index.db"
_LOCK = "lock"
_INFO = "kind, key, root, parent, start, tokens, num_bytes"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: the record, when it came and was last used (Unix seconds), how often; session and tenant are "" until `label` says them."""

    info: RecordInfo
    created_s: float
    used_s: float
    uses: int
    session: str
    tenant: str


class Index:
    """Rows of records. Methods may be called from several threads; all raise BankError if the database fails."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, lock: int | None) -> None:
        self._connection, self._path, self._file_lock = connection, path, lock
        self._lock = threading.Lock()

    @classmethod
    def hold(cls, folder: Path) -> Index:
        """The index of a folder of records, made if it is not there, and the folder for this process alone. Raises BankLockedError."""
        with files.explained(f"cannot open {folder}"):
            folder.mkdir(0o700, parents=True, exist_ok=True)
            if files.size(folder / _LOCK) is None and any(folder.iterdir()):
                raise BankError(f"{folder} holds something else", hint="give --bank-dir a folder that is new or empty")
            folder.chmod(0o700)
            lock = files.lock(folder / _LOCK)
        try:
            with files.explained(f"cannot open {folder}"):
                return cls(database.writable(folder / _FILE), folder / _FILE, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def view(cls, folder: Path) -> Index:
        """The index of a folder that another process may hold, for looking only."""
        path = folder / _FILE
        if files.size(path) is None:
            raise BankError(f"no conversations are stored in {folder}")
        return cls(database.readable(path), path, None)

    @classmethod
    def in_memory(cls) -> Index:
        """An empty index that no file holds."""
        return cls(database.in_memory(), None, None)

    @property
    def is_view(self) -> bool:
        """Whether rows can only be looked at."""
        return self._path is not None and self._file_lock is None

    @property
    def num_bytes(self) -> int:
        """Bytes of the database's files."""
        return sum(files.size(path) or 0 for path in self.paths)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files that may belong to the database."""
        return database.paths(self._path) if self._path else ()

    def add(self, infos: Iterable[RecordInfo], now_s: float) -> None:
        """Add rows; a key that is there stays as it is."""
        rows = [(i.key, i.kind, i.root, i.parent, i.start, i.num_bytes, now_s, now_s, 0, "", "", token_bytes(i.tokens)) for i in infos]
        self._many(f"INSERT INTO record VALUES ({', '.join('?' * 12)}) ON CONFLICT DO NOTHING", rows)

    def remove(self, keys: Iterable[str]) -> None:
        """Forget rows; keys that are not there are passed over."""
        self._many("DELETE FROM record WHERE key = ?", [(key,) for key in keys])

    def touch(self, keys: Iterable[str], now_s: float) -> None:
        """Note that records were used."""
        self._many("UPDATE record SET used_s = ?, uses = uses + 1 WHERE key = ?", [(now_s, key) for key in keys])

    def label(self, keys: Iterable[str], *, session: str, tenant: str) -> None:
        """Note whose records these are."""
        self._many("UPDATE record SET session = ?, tenant = ? WHERE key = ?", [(session, tenant, key) for key in keys])

    def find(self, keys: Iterable[str]) -> dict[str, RecordInfo]:
        """Those of the keys that are there."""
        infos = self._infos("WHERE key IN (SELECT value FROM json_each(?))", json.dumps(list(keys)))
        return {info.key: info for info in infos}

    def occupied(self, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes from which a record hangs."""
        sql = "SELECT value FROM json_each(?) WHERE EXISTS (SELECT 1 FROM record WHERE parent = value)"
        return {node for (node,) in self._rows(sql, json.dumps(list(nodes)))}

    def children(self, node: str) -> list[RecordInfo]:
        """All that hangs from a node: segments and marks."""
        return self._infos("WHERE parent = ?", node)

    def along(self, kind: Kind, node: str, tokens: Sequence[int]) -> list[RecordInfo]:
        """Records of this kind that hang from the node and whose tokens are a beginning of `tokens`; longest first."""
        found, probe = [], tuple(tokens)
        while row := self._last_up_to(node, kind, probe):
            if probe[: len(row.tokens)] == row.tokens:
                found.append(row)
                if not row.tokens:
                    break
                probe = probe[: len(row.tokens) - 1]
            else:
                # In the order of rows no beginning of `tokens` that is longer than what both share lies before this row.
                probe = probe[: _num_shared(row.tokens, probe)]
        return found

    def segment_over(self, node: str, tokens: Sequence[int]) -> RecordInfo | None:
        """A segment that hangs from the node and whose tokens begin with `tokens`, the same if it is there."""
        first, following = tuple(tokens), "WHERE parent = ? AND kind = 'segment' AND tokens >= ? ORDER BY tokens LIMIT 1"
        return next((row for row in self._infos(following, node, token_bytes(first)) if row.tokens[: len(first)] == first), None)

    def shared(self, node: str, tokens: Sequence[int]) -> int:
        """How many of `tokens` a segment that hangs from the node begins with, at most. The one that agrees longest is a neighbour."""
        probe, following = tuple(tokens), "WHERE parent = ? AND kind = 'segment' AND tokens > ? ORDER BY tokens LIMIT 1"
        near = [self._last_up_to(node, "segment", probe), *self._infos(following, node, token_bytes(probe))]
        return max((_num_shared(row.tokens, probe) for row in near if row), default=0)

    def session(self, key: str) -> str:
        """The session that the record is labelled with, "" if none."""
        return next((session for (session,) in self._rows("SELECT session FROM record WHERE key = ?", key)), "")

    def oldest(self, limit: int) -> list[Entry]:
        """The `limit` entries that were not used for longest; of those used together the later in a conversation first."""
        return self._entries("ORDER BY used_s, start DESC LIMIT ?", limit)

    def marks(self) -> list[Entry]:
        """All marks, the last used first."""
        return self._entries("WHERE kind = 'mark' ORDER BY used_s DESC")

    def inventory(self) -> list[RecordInfo]:
        """All records."""
        return self._infos("")

    def keys(self) -> set[str]:
        """All keys."""
        return {key for (key,) in self._rows("SELECT key FROM record")}

    def close(self) -> None:
        """Close the database and let go of the folder."""
        self._connection.close()
        if self._file_lock is not None:
            os.close(self._file_lock)

    def _last_up_to(self, node: str, kind: Kind, tokens: tuple[int, ...]) -> RecordInfo | None:
        where = "WHERE parent = ? AND kind = ? AND tokens <= ? ORDER BY tokens DESC LIMIT 1"
        return next(iter(self._infos(where, node, kind, token_bytes(tokens))), None)

    def _infos(self, where: str, *values: object) -> list[RecordInfo]:
        return [_info(row) for row in self._rows(f"SELECT {_INFO} FROM record {where}", *values)]

    def _entries(self, where: str, *values: object) -> list[Entry]:
        rows = self._rows(f"SELECT {_INFO}, created_s, used_s, uses, session, tenant FROM record {where}", *values)
        return [Entry(_info(row[:7]), *row[7:]) for row in rows]

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, database.explained(self._path):
            return self._connection.execute(sql, values).fetchall()

    def _many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Run a statement for each row, all or none."""
        with self._lock, database.explained(self._path), database.transaction(self._connection):
            self._connection.executemany(sql, rows)


def _info(row: tuple[Any, ...]) -> RecordInfo:
    kind, key, root, parent, start, tokens, num_bytes = row
    return RecordInfo(kind, key, root, parent, start, tokens_of(tokens), num_bytes)


def _num_shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two sequences begin with alike."""
    differing = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
