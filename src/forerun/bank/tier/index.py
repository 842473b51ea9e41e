"""The index of a tier: one SQLite database with a row per record, searched by node without a scan.

A row repeats the head of the record's file, and adds uses and session: a lost index is rebuilt from the files, without its other tables
(history.py). Knows nothing of record files, payloads or policy.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from forerun.bank.tier import database, files
from forerun.bank.tier.database import RowKey, checked
from forerun.bank.tier.format import file_bytes
from forerun.bank.tier.history import History
from forerun.bank.tier.responses import COUNT_WRITTEN
from forerun.errors import BankError
from forerun.state.record import SEGMENT_TOKENS, Kind, RecordInfo, token_bytes, tokens_of
from forerun.text.partial_match import num_common

_ROW = RowKey("record", ("key",), (1,))
_INFO = "kind, key, root, parent, start, tokens, num_bytes"


@dataclass(frozen=True, slots=True)
class Entry:
    """A record's row. created_s, used_s: Unix seconds. uses: how often. session, tenant: "" until `Index.label` sets them."""

    info: RecordInfo
    created_s: float
    used_s: float
    rank_s: float
    uses: int
    session: str
    tenant: str


@dataclass(frozen=True, slots=True)
class RecordLabel:
    """A record's session and tenant, last use (Unix seconds) and eviction rank (see policy.rank_s)."""

    session: str
    tenant: str
    used_s: float
    rank_s: float


@dataclass(frozen=True, slots=True)
class Totals:
    """record_bytes: of all record files. sessions: number of conversations. written_bytes: of the records and
    responses written on `day` (UTC).
    """

    record_bytes: int
    sessions: int
    day: str
    written_bytes: int

    def written_on(self, day: str) -> int:
        """Bytes written on that day."""
        return self.written_bytes if day == self.day else 0


class Index(History):
    """Methods may be called from several threads; all raise BankError if the database fails. lock: descriptor of the folder's lock, closed
    with the index; None for a read-only view (`is_view`), or in memory (path None).
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None, lock: int | None) -> None:
        super().__init__(connection, path)
        self._file_lock = lock
        self.is_view = path is not None and lock is None
        self._totals: Totals | None = None

    @classmethod
    def in_memory(cls) -> Index:
        """An empty index in memory."""
        return cls(database.in_memory(), None, None)

    def announce(self, address: str) -> None:
        """Write the server's address into the folder's lock file."""
        assert self._file_lock is not None
        files.rewrite(self._file_lock, address.encode())

    @property
    def num_bytes(self) -> int:
        """Bytes of the database's files."""
        return sum(files.size(path) or 0 for path in self.paths)

    @property
    def totals(self) -> Totals:
        """Sums over all rows, kept by triggers."""
        with self._lock:
            if self._totals is None:
                self._totals = Totals(*self._rows("SELECT * FROM total")[0])
            return self._totals

    @property
    def paths(self) -> tuple[Path, ...]:
        """The database's files, which need not exist."""
        return database.paths(self._path) if self._path else ()

    def add(self, infos: Iterable[RecordInfo], now_s: float) -> None:
        """Add rows; an existing one stays unchanged."""
        self._many(_insertion(infos, now_s))

    def add_written(self, info: RecordInfo, now_s: float, day: str) -> None:
        """Add the row of a record written on this day, and count its bytes, in one transaction."""
        self._many(_insertion([info], now_s), (COUNT_WRITTEN, [(file_bytes(info), day, day)]))

    def remove(self, keys: Iterable[str]) -> None:
        """Delete rows; absent keys are ignored."""
        self._many(("DELETE FROM record WHERE key = ?", [(key,) for key in keys]))

    def num_sessions(self, others: Iterable[tuple[str, str]]) -> int:
        """Number of conversations here, plus those of `others`, (tenant, id), that are not."""
        with self._lock:
            return self.totals.sessions + sum(self.session(*name) is None for name in others)

    def remove_gone(self, infos: Collection[RecordInfo], now_s: float) -> None:
        """Delete the rows of records whose files are missing, and note them as lost."""
        self.remove(info.key for info in infos)
        self.note_damaged(infos, "its file was removed", now_s)

    def note_damaged(self, infos: Iterable[RecordInfo], reason: str, now_s: float) -> None:
        """Note as lost: these records, and the snapshots that depend on them."""
        for info in infos:
            snapshots = self.along("snapshot", info.parent, info.tokens) if info.kind == "segment" else []
            self.note_lost([info, *snapshots], "damaged", reason, now_s)

    def touch(self, ranks_s: Mapping[str, float], used_s: float) -> None:
        """Count a use of the records of these keys, and set their ranks."""
        sql = "UPDATE record SET used_s = ?, rank_s = ?, uses = uses + 1 WHERE key = ?"
        self._many((sql, [(used_s, rank_s, key) for key, rank_s in ranks_s.items()]))

    def label(self, key: str, label: RecordLabel) -> None:
        """Set a record's label, and count a use."""
        sql = "UPDATE record SET session = ?, tenant = ?, used_s = ?, rank_s = ?, uses = uses + 1 WHERE key = ?"
        self._many((sql, [(label.session, label.tenant, label.used_s, label.rank_s, key)]))

    def present(self, keys: Iterable[str]) -> set[str]:
        """The keys that have rows; the rows are not read."""
        sql = "SELECT key FROM record WHERE key IN (SELECT value FROM json_each(?))"
        return {key for (key,) in self._rows(sql, json.dumps(list(keys)))}

    def find(self, keys: Iterable[str]) -> dict[str, RecordInfo]:
        """The rows of these keys, absent ones left out."""
        infos = self._infos("WHERE key IN (SELECT value FROM json_each(?))", json.dumps(list(keys)))
        return {info.key: info for info in infos}

    def along(self, kind: Kind, node: str, tokens: Sequence[int]) -> list[RecordInfo]:
        """Records of this kind at the node whose tokens are a prefix of `tokens`; longest first."""
        found, probe = [], tuple(tokens)
        while row := self._last_up_to(node, kind, probe):
            if probe[: len(row.tokens)] == row.tokens:
                found.append(row)
                if not row.tokens:
                    break
                probe = probe[: len(row.tokens) - 1]
            else:
                # Rows are ordered by tokens: no prefix of `tokens` longer than the common one precedes this row.
                probe = probe[: num_common(row.tokens, probe)]
        return found

    def segment_over(self, node: str, tokens: Sequence[int]) -> RecordInfo | None:
        """A segment at the node whose tokens begin with `tokens`; the one of exactly these if there is one."""
        first, following = tuple(tokens), "WHERE parent = ? AND kind = 'segment' AND tokens >= ? ORDER BY tokens LIMIT 1"
        return next((row for row in self._infos(following, node, token_bytes(first)) if row.tokens[: len(first)] == first), None)

    def nearest(self, node: str, tokens: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Length of the longest prefix that `tokens` share with a segment of the node, and that segment's tokens after it. The segment is a
        neighbour of `tokens` in the order of rows.
        """
        probe, following = tuple(tokens), "WHERE parent = ? AND kind = 'segment' AND tokens > ? ORDER BY tokens LIMIT 1"
        near = [self._last_up_to(node, "segment", probe), *self._infos(following, node, token_bytes(probe))]
        found = [(num_common(row.tokens, probe), row.tokens) for row in near if row]
        shared, own = max(found, default=(0, ()), key=lambda x: (x[0], len(x[1])))
        return shared, own[shared:]

    def latest_segment(self, node: str) -> tuple[int, ...]:
        """Tokens of the node's segment of highest rank; () if there is none."""
        return next((row.tokens for row in self._infos("WHERE parent = ? AND kind = 'segment' ORDER BY rank_s DESC LIMIT 1", node)), ())

    def lowest(self, limit: int, sparing: Collection[str]) -> list[Entry]:
        """The `limit` entries of lowest rank, without the keys `sparing`; of equals those later in a conversation first, and a snapshot
        before the segment that it needs.
        """
        order = "ORDER BY rank_s, start DESC, kind DESC, length(tokens) DESC"
        where = f"WHERE key NOT IN (SELECT value FROM json_each(?)) {order} LIMIT ?"
        return self._entries(where, json.dumps(sorted(sparing)), limit)

    def owned(self, tenant: str, session: str) -> list[RecordInfo]:
        """The records that this conversation wrote last."""
        return self._infos("WHERE tenant = ? AND session = ? AND session <> ''", tenant, session)

    def of_owner(self, tenant: str, roots: Collection[str]) -> list[RecordInfo]:
        """The records of a tenant: those that its conversations wrote, and all under one of `roots` or a root noted as its own."""
        noted = {root for (root,) in self._rows("SELECT root FROM identity WHERE tenant = ?", tenant)}
        where = "WHERE (tenant = ? AND session <> '') OR root IN (SELECT value FROM json_each(?))"
        return self._infos(where, tenant, json.dumps(sorted(noted | set(roots))))

    def bytes_of(self, keys: Iterable[str]) -> int:
        """Bytes of these records' files."""
        sql = "SELECT coalesce(sum(file_bytes), 0) FROM record WHERE key IN (SELECT value FROM json_each(?))"
        return int(self._rows(sql, json.dumps(list(keys)))[0][0])

    def entry(self, key: str) -> Entry | None:
        """The entry of that key, None if there is none."""
        return next(iter(self._entries("WHERE key = ?", key)), None)

    def snapshots(self) -> list[Entry]:
        """All snapshots, last used first."""
        return self._entries("WHERE kind = 'snapshot' ORDER BY used_s DESC")

    def inventory(self) -> list[RecordInfo]:
        """All records."""
        return self._infos("")

    def damage(self) -> list[str]:
        """What SQLite's integrity check finds; reads every page."""
        return [f"{self._path}: {found}" for (found,) in self._rows("PRAGMA integrity_check") if found != "ok"]

    def keys(self, prefix: str) -> set[str]:
        """All keys that begin with `prefix`, in lower-case hex digits."""
        return {key for (key,) in self._rows("SELECT key FROM record WHERE key >= ? AND key < ?", prefix, f"{prefix}g")}

    def prefixes(self, candidates: Iterable[str]) -> set[str]:
        """Those of the candidates, in lower-case hex digits, with which a key begins."""
        begins = "EXISTS (SELECT 1 FROM record WHERE key >= value AND key < value || 'g')"
        return {prefix for (prefix,) in self._rows(f"SELECT value FROM json_each(?) WHERE {begins}", json.dumps(list(candidates)))}

    def _many(self, *work: tuple[str, list[Any]]) -> None:
        with self._lock:
            self._totals = None
            super()._many(*work)

    def close(self) -> None:
        """Close the database and release the folder."""
        self._connection.close()
        lock, self._file_lock = self._file_lock, None
        if lock is not None:
            os.close(lock)

    def scrub(self) -> None:
        """Delete the notes of lost records, and truncate the log with its deleted rows. Raises BankError while another process reads."""
        self._many(("DELETE FROM lost", [()]))
        if not self.truncate_log():
            raise BankError(f"{self._path} is being read: its log still holds what was removed", hint="try again in a moment")

    def truncate_log(self) -> bool:
        """Truncate the log with its deleted rows. Returns whether it could: another process may be reading."""
        ((is_busy, *_),) = self._rows("PRAGMA wal_checkpoint(TRUNCATE)")
        return not is_busy

    def forget_empty_sessions(self, ids: Iterable[tuple[str, str]]) -> None:
        """Delete those of these conversations, (tenant, id), that have no records left."""
        for tenant, id in ids:
            session = self.session(tenant, id)
            if session is not None and not self.present(session.keys):
                self.remove_session(tenant, id)

    def _last_up_to(self, node: str, kind: Kind, tokens: tuple[int, ...]) -> RecordInfo | None:
        where = "WHERE parent = ? AND kind = ? AND tokens <= ? ORDER BY tokens DESC LIMIT 1"
        return next(iter(self._infos(where, node, kind, token_bytes(tokens))), None)

    def _infos(self, where: str, *values: object) -> list[RecordInfo]:
        return self._decoded(_info, _ROW, f"SELECT {_INFO} FROM record {where}", *values)

    def _entries(self, where: str, *values: object) -> list[Entry]:
        sql = f"SELECT {_INFO}, created_s, used_s, rank_s, uses, session, tenant FROM record {where}"
        return self._decoded(_entry, _ROW, sql, *values)


def _insertion(infos: Iterable[RecordInfo], now_s: float) -> tuple[str, list[Any]]:
    used = (now_s, now_s, now_s, 0, "", "")
    rows = [(i.key, i.kind, i.root, i.parent, i.start, i.num_bytes, file_bytes(i), *used, token_bytes(i.tokens)) for i in infos]
    return f"INSERT INTO record VALUES ({', '.join('?' * 14)}) ON CONFLICT DO NOTHING", rows


def _info(row: tuple[Any, ...]) -> RecordInfo:
    kind, key, root, parent, start, tokens, num_bytes = row
    key, root, parent = (checked(name, str) for name in (key, root, parent))
    info = RecordInfo(kind, key, root, parent, checked(start, int), tokens_of(checked(tokens, bytes)), checked(num_bytes, int))
    if kind not in get_args(Kind) or start % SEGMENT_TOKENS or len(info.tokens) > SEGMENT_TOKENS:
        raise ValueError(f"{kind!r} of {len(info.tokens)} tokens at {start}")
    return info


def _entry(row: tuple[Any, ...]) -> Entry:
    (created_s, used_s, rank_s), (uses, session, tenant) = (checked(time_s, float) for time_s in row[7:10]), row[10:]
    return Entry(_info(row[:7]), created_s, used_s, rank_s, checked(uses, int), checked(session, str), checked(tenant, str))
