"""What is in a tier, a row a record: one SQLite database. Answers what hangs from a node without reading or listing the rest.

The rows of records say nothing that the records' own heads do not say, but for the uses and the session: a lost index is built anew from
them. What else an index remembers (see history.py) is then lost.
Knows nothing of files of records, payloads or policy.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.bank.tier import database, files
from forerun.bank.tier.format import file_bytes
from forerun.bank.tier.history import History
from forerun.errors import BankError
from forerun.state.record import Kind, RecordInfo, num_shared, token_bytes, tokens_of

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
class RecordLabel:
    """Whose a record is, when it was last used (Unix seconds), and its rank among what goes first (see retain.rank_s)."""

    session: str
    tenant: str
    used_s: float
    rank_s: float


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


class Index(History):
    """Rows of records. Methods may be called from several threads; all raise BankError if the database fails. lock: a descriptor that holds
    the folder and goes with the index; None for looking only (`is_view`), or if no file holds the rows (path None).
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None, lock: int | None) -> None:
        super().__init__(connection, path)
        self._file_lock = lock
        self.is_view = path is not None and lock is None
        self._totals: Totals | None = None

    @classmethod
    def in_memory(cls) -> Index:
        """An empty index that no file holds."""
        return cls(database.in_memory(), None, None)

    def announce(self, address: str) -> None:
        """Say where the server answers that holds the folder."""
        assert self._file_lock is not None
        files.rewrite(self._file_lock, address.encode())

    @property
    def num_bytes(self) -> int:
        """Bytes of the database's files."""
        return sum(files.size(path) or 0 for path in self.paths)

    @property
    def totals(self) -> Totals:
        """Sums over all rows, without reading them."""
        with self._lock:
            if self._totals is None:
                self._totals = Totals(*self._rows("SELECT * FROM total")[0])
            return self._totals

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

    def num_sessions(self, others: Iterable[tuple[str, str]]) -> int:
        """How many conversations are noted here, and of `others`, (tenant, id), are not."""
        with self._lock:
            return self.totals.sessions + sum(self.session(*name) is None for name in others)

    def remove_gone(self, infos: Collection[RecordInfo], now_s: float) -> None:
        """Forget the rows of records whose files are not there, and note it."""
        self.remove(info.key for info in infos)
        self.note_damaged(infos, "its file was removed", now_s)

    def note_damaged(self, infos: Iterable[RecordInfo], reason: str, now_s: float) -> None:
        """Note why records cannot be had, and so the marks to which they lead."""
        for info in infos:
            snapshots = self.along("snapshot", info.parent, info.tokens) if info.kind == "segment" else []
            self.note_lost([info, *snapshots], "damaged", reason, now_s)

    def touch(self, ranks_s: Mapping[str, float], used_s: float) -> None:
        """Note that records, by key, were used, and what their ranks are now."""
        sql = "UPDATE record SET used_s = ?, rank_s = ?, uses = uses + 1 WHERE key = ?"
        self._many((sql, [(used_s, rank_s, key) for key, rank_s in ranks_s.items()]))

    def label(self, key: str, label: RecordLabel) -> None:
        """Note whose record this is, and that it was used."""
        sql = "UPDATE record SET session = ?, tenant = ?, used_s = ?, rank_s = ?, uses = uses + 1 WHERE key = ?"
        self._many((sql, [(label.session, label.tenant, label.used_s, label.rank_s, key)]))

    def present(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that are there; their rows are not read."""
        sql = "SELECT key FROM record WHERE key IN (SELECT value FROM json_each(?))"
        return {key for (key,) in self._rows(sql, json.dumps(list(keys)))}

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

    def lowest(self, limit: int, sparing: Collection[str]) -> list[Entry]:
        """The `limit` entries of the lowest rank but for those of the keys `sparing`; of equals the later in a conversation first."""
        where = "WHERE key NOT IN (SELECT value FROM json_each(?)) ORDER BY rank_s, start DESC LIMIT ?"
        return self._entries(where, json.dumps(sorted(sparing)), limit)

    def owned(self, tenant: str, session: str) -> list[RecordInfo]:
        """The records that a conversation wrote last."""
        return self._infos("WHERE tenant = ? AND session = ? AND session <> ''", tenant, session)

    def of_owner(self, tenant: str, roots: Collection[str]) -> list[RecordInfo]:
        """The records of a tenant: what its conversations wrote, and all that begins at one of `roots` or at a root noted as its own."""
        noted = {root for (root,) in self._rows("SELECT root FROM identity WHERE tenant = ?", tenant)}
        where = "WHERE (tenant = ? AND session <> '') OR root IN (SELECT value FROM json_each(?))"
        return self._infos(where, tenant, json.dumps(sorted(noted | set(roots))))

    def bytes_of(self, keys: Iterable[str]) -> int:
        """Bytes of the files of these records."""
        sql = "SELECT coalesce(sum(file_bytes), 0) FROM record WHERE key IN (SELECT value FROM json_each(?))"
        return int(self._rows(sql, json.dumps(list(keys)))[0][0])

    def entry(self, key: str) -> Entry | None:
        """The row of that key, None if there is none."""
        return next(iter(self._entries("WHERE key = ?", key)), None)

    def snapshots(self) -> list[Entry]:
        """All marks, the last used first."""
        return self._entries("WHERE kind = 'snapshot' ORDER BY used_s DESC")

    def inventory(self) -> list[RecordInfo]:
        """All records."""
        return self._infos("")

    def damage(self) -> list[str]:
        """What SQLite finds wrong with the database, every page of which it reads."""
        return [f"{self._path}: {found}" for (found,) in self._rows("PRAGMA integrity_check") if found != "ok"]

    def keys(self, prefix: str) -> set[str]:
        """All keys that begin with `prefix`, lower-case hex digits."""
        return {key for (key,) in self._rows("SELECT key FROM record WHERE key >= ? AND key < ?", prefix, f"{prefix}g")}

    def prefixes(self, candidates: Iterable[str]) -> set[str]:
        """Those of the candidates, lower-case hex digits, with which a key begins."""
        begins = "EXISTS (SELECT 1 FROM record WHERE key >= value AND key < value || 'g')"
        return {prefix for (prefix,) in self._rows(f"SELECT value FROM json_each(?) WHERE {begins}", json.dumps(list(candidates)))}

    def _many(self, *work: tuple[str, list[Any]]) -> None:
        with self._lock:
            self._totals = None
            super()._many(*work)

    def close(self) -> None:
        """Close the database and let go of the folder."""
        self._connection.close()
        lock, self._file_lock = self._file_lock, None
        if lock is not None:
            os.close(lock)

    def scrub(self) -> None:
        """Forget what was lost, and leave no trace of removed rows in the database's log. Raises BankError if somebody else reads it."""
        self._many(("DELETE FROM lost", [()]))
        ((is_busy, *_),) = self._rows("PRAGMA wal_checkpoint(TRUNCATE)")
        if is_busy:
            raise BankError(f"{self._path} is being read: its log still holds what was removed", hint="do it again in a moment")

    def forget_empty_sessions(self, names: Iterable[tuple[str, str]]) -> None:
        """Of these conversations, (tenant, name), forget those of which no record is left."""
        for tenant, name in names:
            session = self.session(tenant, name)
            if session is not None and not self.present(session.keys):
                self.remove_session(tenant, name)

    def _last_up_to(self, node: str, kind: Kind, tokens: tuple[int, ...]) -> RecordInfo | None:
        where = "WHERE parent = ? AND kind = ? AND tokens <= ? ORDER BY tokens DESC LIMIT 1"
        return next(iter(self._infos(where, node, kind, token_bytes(tokens))), None)

    def _infos(self, where: str, *values: object) -> list[RecordInfo]:
        return [_info(row) for row in self._rows(f"SELECT {_INFO} FROM record {where}", *values)]

    def _entries(self, where: str, *values: object) -> list[Entry]:
        rows = self._rows(f"SELECT {_INFO}, created_s, used_s, rank_s, uses, session, tenant FROM record {where}", *values)
        return [Entry(_info(row[:7]), *row[7:]) for row in rows]


def _info(row: tuple[Any, ...]) -> RecordInfo:
    kind, key, root, parent, start, tokens, num_bytes = row
    return RecordInfo(kind, key, root, parent, start, tokens_of(tokens), num_bytes)
