"""What is in a tier, a row a record: one SQLite database. Answers what hangs from a node without reading or listing the rest.

The rows say nothing that the records' own heads do not say, but for the uses and the session: a lost index is built anew from the records.
Knows nothing of files of records, payloads or policy. Holding the index of a folder for writing is holding the folder.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forerun.bank import database, files
from forerun.bank.format import file_bytes
from forerun.errors import BankError
from forerun.state.record import Kind, RecordInfo, num_shared, token_bytes, tokens_of

_FILE = "index.db"
_LOCK = "lock"
LOST_RECORDS = 1000
LossKind = Literal["evicted", "damaged", "not stored"]
_INFO = "kind, key, root, parent, start, tokens, num_bytes"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: the record, when it came and was last used (Unix seconds), how often; session and tenant are "" until `label` says them."""

    info: RecordInfo
    created_s: float
    used_s: float
    rank_s: float
    uses: int
    session: str
    tenant: str


@dataclass(frozen=True, slots=True)
class Label:
    """Whose a record is, when it was last used (Unix seconds), and its rank among what goes first (see retain.rank_s)."""

    session: str
    tenant: str
    used_s: float
    rank_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as the index knows it: its last use (Unix seconds), turns, tokens, and the keys of the records that it consists of."""

    tenant: str
    name: str
    used_s: float
    turns: int
    num_tokens: int
    is_pinned: bool
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A record that is not here: where it ended, why it is not, since when (Unix seconds)."""

    position: int
    kind: LossKind
    why: str
    lost_s: float


@dataclass(frozen=True, slots=True)
class Totals:
    """record_bytes: of the files of all records. sessions: their number. written_bytes: of the records written on `day` (UTC)."""

    record_bytes: int
    sessions: int
    day: str
    written_bytes: int

    def written_on(self, day: str) -> int:
        """Bytes written on that day."""
        return self.written_bytes if day == self.day else 0


class Index:
    """Rows of records. Methods may be called from several threads; all raise BankError if the database fails."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, lock: int | None) -> None:
        self._connection, self._path, self._file_lock = connection, path, lock
        self._is_view = path is not None and lock is None
        self._lock = threading.Lock()
        self._totals: Totals | None = None

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
        with files.explained(f"cannot open {folder}"):
            if files.size(path) is None:
                raise BankError(
                    f"no conversations are stored in {folder}", hint="name the folder with --bank-dir; `forerun serve` makes it"
                )
        return cls(database.readable(path), path, None)

    @classmethod
    def in_memory(cls) -> Index:
        """An empty index that no file holds."""
        return cls(database.in_memory(), None, None)

    @property
    def is_view(self) -> bool:
        """Whether rows can only be looked at."""
        return self._is_view

    @property
    def num_bytes(self) -> int:
        """Bytes of the database's files."""
        return sum(files.size(path) or 0 for path in self.paths)

    @property
    def totals(self) -> Totals:
        """Sums over all rows, without reading them."""
        found = self._totals
        if found is None:
            found = self._totals = Totals(*self._rows("SELECT * FROM total")[0])
        return found

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files that may belong to the database."""
        return database.paths(self._path) if self._path else ()

    def add(self, infos: Iterable[RecordInfo], now_s: float) -> None:
        """Add rows; a key that is there stays as it is."""
        used = (now_s, now_s, now_s, 0, "", "")
        rows = [(i.key, i.kind, i.root, i.parent, i.start, i.num_bytes, file_bytes(i), *used, token_bytes(i.tokens)) for i in infos]
        self._many((f"INSERT INTO record VALUES ({', '.join('?' * 14)}) ON CONFLICT DO NOTHING", rows))

    def add_written(self, info: RecordInfo, now_s: float, day: str) -> None:
        """Add the row of a record that was written on this day."""
        self.add([info], now_s)
        sql = "UPDATE total SET written_bytes = ? + iif(day = ?, written_bytes, 0), day = ?"
        self._many((sql, [(file_bytes(info), day, day)]))

    def remove(self, keys: Iterable[str]) -> None:
        """Forget rows; keys that are not there are passed over."""
        self._many(("DELETE FROM record WHERE key = ?", [(key,) for key in keys]))

    def touch(self, ranks_s: Mapping[str, float], used_s: float) -> None:
        """Note that records, by key, were used, and what their ranks are now."""
        sql = "UPDATE record SET used_s = ?, rank_s = ?, uses = uses + 1 WHERE key = ?"
        self._many((sql, [(used_s, rank_s, key) for key, rank_s in ranks_s.items()]))

    def label(self, key: str, label: Label) -> None:
        """Note whose record this is, and that it was used."""
        sql = "UPDATE record SET session = ?, tenant = ?, used_s = ?, rank_s = ?, uses = uses + 1 WHERE key = ?"
        self._many((sql, [(label.session, label.tenant, label.used_s, label.rank_s, key)]))

    def find(self, keys: Iterable[str]) -> dict[str, RecordInfo]:
        """Those of the keys that are there."""
        infos = self._infos("WHERE key IN (SELECT value FROM json_each(?))", json.dumps(list(keys)))
        return {info.key: info for info in infos}

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
                probe = probe[: num_shared(row.tokens, probe)]
        return found

    def segment_over(self, node: str, tokens: Sequence[int]) -> RecordInfo | None:
        """A segment that hangs from the node and whose tokens begin with `tokens`, the same if it is there."""
        first, following = tuple(tokens), "WHERE parent = ? AND kind = 'segment' AND tokens >= ? ORDER BY tokens LIMIT 1"
        return next((row for row in self._infos(following, node, token_bytes(first)) if row.tokens[: len(first)] == first), None)

    def nearest(self, node: str, tokens: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """With how many of `tokens` a segment that hangs from the node begins, at most, and that segment's tokens after these. The one that
        agrees longest is a neighbour.
        """
        probe, following = tuple(tokens), "WHERE parent = ? AND kind = 'segment' AND tokens > ? ORDER BY tokens LIMIT 1"
        near = [self._last_up_to(node, "segment", probe), *self._infos(following, node, token_bytes(probe))]
        found = [(num_shared(row.tokens, probe), row.tokens) for row in near if row]
        shared, own = max(found, default=(0, ()), key=lambda x: (x[0], len(x[1])))
        return shared, own[shared:]

    def latest_segment(self, node: str) -> tuple[int, ...]:
        """Tokens of the segment of highest rank that hangs from the node; none if none does."""
        return next((row.tokens for row in self._infos("WHERE parent = ? AND kind = 'segment' ORDER BY rank_s DESC LIMIT 1", node)), ())

    def lowest(self, limit: int) -> list[Entry]:
        """The `limit` entries of the lowest rank; of equals the later in a conversation first."""
        return self._entries("ORDER BY rank_s, start DESC LIMIT ?", limit)

    def entry(self, key: str) -> Entry | None:
        """The row of that key, None if there is none."""
        return next(iter(self._entries("WHERE key = ?", key)), None)

    def marks(self) -> list[Entry]:
        """All marks, the last used first."""
        return self._entries("WHERE kind = 'mark' ORDER BY used_s DESC")

    def inventory(self) -> list[RecordInfo]:
        """All records."""
        return self._infos("")

    def keys(self, prefix: str) -> set[str]:
        """All keys that begin with `prefix`, lower-case hex digits."""
        return {key for (key,) in self._rows("SELECT key FROM record WHERE key >= ? AND key < ?", prefix, f"{prefix}g")}

    def prefixes(self, candidates: Iterable[str]) -> set[str]:
        """Those of the candidates, lower-case hex digits, with which a key begins."""
        begins = "EXISTS (SELECT 1 FROM record WHERE key >= value AND key < value || 'g')"
        return {prefix for (prefix,) in self._rows(f"SELECT value FROM json_each(?) WHERE {begins}", json.dumps(list(candidates)))}

    def note_session(self, session: Session) -> None:
        """Note what a conversation consists of now. Whether it is pinned stays as it was."""
        sql = (
            "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " used_s = excluded.used_s, turns = excluded.turns, num_tokens = excluded.num_tokens, keys = excluded.keys"
        )
        keys = bytes.fromhex("".join(session.keys))
        self._many((sql, [(session.tenant, session.name, session.used_s, session.turns, session.num_tokens, session.is_pinned, keys)]))

    def session(self, tenant: str, name: str) -> Session | None:
        """The tenant's conversation of that name, None if there is none."""
        return next(iter(self._sessions("WHERE tenant = ? AND name = ?", tenant, name)), None)

    def all_sessions(self) -> list[Session]:
        """Every tenant's conversations."""
        return self._sessions("")

    def sessions(self, tenant: str) -> list[Session]:
        """The tenant's conversations, in the order of their names."""
        return self._sessions("WHERE tenant = ? ORDER BY name", tenant)

    def close(self) -> None:
        """Close the database and let go of the folder."""
        self._connection.close()
        lock, self._file_lock = self._file_lock, None
        if lock is not None:
            os.close(lock)

    def _last_up_to(self, node: str, kind: Kind, tokens: tuple[int, ...]) -> RecordInfo | None:
        where = "WHERE parent = ? AND kind = ? AND tokens <= ? ORDER BY tokens DESC LIMIT 1"
        return next(iter(self._infos(where, node, kind, token_bytes(tokens))), None)

    def _infos(self, where: str, *values: object) -> list[RecordInfo]:
        return [_info(row) for row in self._rows(f"SELECT {_INFO} FROM record {where}", *values)]

    def _entries(self, where: str, *values: object) -> list[Entry]:
        rows = self._rows(f"SELECT {_INFO}, created_s, used_s, rank_s, uses, session, tenant FROM record {where}", *values)
        return [Entry(_info(row[:7]), *row[7:]) for row in rows]

    def remove_session(self, tenant: str, name: str) -> None:
        """Forget a conversation; its records stay."""
        self._many(("DELETE FROM session WHERE tenant = ? AND name = ?", [(tenant, name)]))

    def forget_empty_sessions(self, names: Iterable[tuple[str, str]]) -> None:
        """Of these conversations, (tenant, name), forget those of which no record is left."""
        for tenant, name in names:
            session = self.session(tenant, name)
            if session is not None and not self.find(session.keys):
                self.remove_session(tenant, name)

    def note_lost(self, infos: Iterable[RecordInfo], kind: LossKind, why: str, now_s: float) -> None:
        """Note why records are not here any more, or never were. The last LOST_RECORDS are remembered."""
        sql = (
            "INSERT INTO lost (parent, start, kind, why, lost_s, tokens) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (parent, tokens) DO UPDATE SET kind = excluded.kind, why = excluded.why, lost_s = excluded.lost_s"
        )
        rows = [(i.parent, i.start, kind, why, now_s, token_bytes(i.tokens)) for i in infos]
        self._many((sql, rows), ("DELETE FROM lost WHERE number <= (SELECT max(number) FROM lost) - ?", [(LOST_RECORDS,)]))

    def lost(self, node: str, tokens: Sequence[int]) -> Lost | None:
        """The deepest lost record that hung from the node and whose tokens are a beginning of `tokens`."""
        rows = self._rows("SELECT start, tokens, kind, why, lost_s FROM lost WHERE parent = ?", node)
        marks = [(start, tokens_of(data), rest) for start, data, *rest in rows]
        known = [Lost(start + len(own), *rest) for start, own, rest in marks if own == tuple(tokens[: len(own)])]
        return max(known, key=lambda x: x.position, default=None)

    def note_identity(self, root: str, tenant: str, fields: Mapping[str, str], now_s: float) -> None:
        """Note what the chains that begin at `root` depend on."""
        sql = "INSERT INTO identity VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET used_s = excluded.used_s"
        self._many((sql, [(root, tenant, json.dumps(dict(fields)), now_s)]))

    def identities(self, tenant: str, limit: int) -> list[dict[str, str]]:
        """The fields of the identities under which the tenant stored last."""
        sql = "SELECT fields FROM identity WHERE tenant = ? ORDER BY used_s DESC LIMIT ?"
        return [json.loads(fields) for (fields,) in self._rows(sql, tenant, limit)]

    def _sessions(self, where: str, *values: object) -> list[Session]:
        rows = self._rows(f"SELECT * FROM session {where}", *values)
        return [_session(row) for row in rows]

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, database.explained(self._path):
            return self._connection.execute(sql, values).fetchall()

    def _many(self, *work: tuple[str, list[tuple[Any, ...]]]) -> None:
        """Run each statement for each of its rows, all or none."""
        with self._lock, database.explained(self._path), database.transaction(self._connection):
            self._totals = None
            for sql, rows in work:
                self._connection.executemany(sql, rows)


def _info(row: tuple[Any, ...]) -> RecordInfo:
    kind, key, root, parent, start, tokens, num_bytes = row
    return RecordInfo(kind, key, root, parent, start, tokens_of(tokens), num_bytes)


def _session(row: tuple[Any, ...]) -> Session:
    tenant, name, used_s, turns, num_tokens, is_pinned, keys = row
    return Session(tenant, name, used_s, turns, num_tokens, bool(is_pinned), tuple(keys[i : i + 16].hex() for i in range(0, len(keys), 16)))
