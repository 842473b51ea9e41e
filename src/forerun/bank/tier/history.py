"""Tables of an index besides the records and responses: conversations, their memos, lost records with the reason, and identities.

Knows nothing of files or of retention policy.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from xxhash import xxh3_128_hexdigest

from forerun.bank.tier.database import HOLDS_ANCHOR, RowKey, checked, explained
from forerun.bank.tier.responses import ResponseTable
from forerun.state.record import Identity, RecordInfo, token_bytes, tokens_of

LOST_RECORDS = 200
MOST_MEMO_BYTES = 256 << 10  # a longer one is not stored
log = logging.getLogger(__name__)

LossKind = Literal["evicted", "damaged", "not stored"]


@dataclass(frozen=True, slots=True)
class Session:
    """The row of a conversation. id: for requests. name: for people, "" for none. used_s: last use, Unix seconds. keys: of its records.

    title: how it begins, for people. client: the program that it was with, as that calls itself. Both may be "".
    """

    tenant: str
    id: str
    name: str
    used_s: float
    turns: int
    num_tokens: int
    is_pinned: bool
    keys: tuple[str, ...]
    title: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True)
class LostRecord:
    """A record that is gone, or was never written. position: after its last token. lost_s: since when, Unix seconds."""

    position: int
    kind: LossKind
    reason: str
    lost_s: float


@dataclass(frozen=True, slots=True)
class Memo:
    """Opaque data attached to the first `stop` tokens of a conversation, found by name; stored as long as these tokens are."""

    name: str
    stop: int
    data: bytes


@dataclass(frozen=True, slots=True)
class MemoAnchor:
    """Where a memo hangs: it is deleted with the last segment of `node` whose tokens begin with `tokens`. root: of the node's chain."""

    root: str
    node: str
    tokens: tuple[int, ...]


class History(ResponseTable):
    """Methods may be called from several threads; all raise BankError if the database fails."""

    def note_session(self, session: Session) -> None:
        """Insert or update a conversation. An existing name, pin and title stay unchanged."""
        sql = (
            "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " used_s = excluded.used_s, turns = excluded.turns, num_tokens = excluded.num_tokens, keys = excluded.keys,"
            " title = coalesce(nullif(title, ''), excluded.title), client = coalesce(nullif(excluded.client, ''), client)"
        )
        keys = bytes.fromhex("".join(session.keys))
        counts = (session.used_s, session.turns, session.num_tokens, session.is_pinned)
        self._many((sql, [(session.tenant, session.id, session.name, *counts, keys, session.title, session.client)]))

    def session(self, tenant: str, id: str) -> Session | None:
        """The tenant's conversation of that id, None if there is none."""
        return next(iter(self._sessions("WHERE tenant = ? AND id = ?", tenant, id)), None)

    def sessions_of(self, tenant: str, limit: int) -> list[Session]:
        """The tenant's conversations, last used first, at most `limit`."""
        return self._sessions("WHERE tenant = ? ORDER BY used_s DESC LIMIT ?", tenant, limit)

    def all_sessions(self) -> list[Session]:
        """All tenants' conversations, last used first."""
        return self._sessions("ORDER BY used_s DESC")

    def pinned_sessions(self) -> list[Session]:
        """All tenants' pinned conversations."""
        return self._sessions("WHERE is_pinned = 1")

    def is_end_of_another(self, tail: RecordInfo, tenant: str, id: str) -> bool:
        """Whether another conversation of the tenant ends with this segment. Reads only those that end at its position."""
        sql = "SELECT EXISTS (SELECT 1 FROM session WHERE +tenant = ? AND num_tokens = ? AND id <> ? AND instr(keys, ?))"
        return bool(self._rows(sql, tenant, tail.stop, id, bytes.fromhex(tail.key))[0][0])

    def shared(self, keys: Collection[str], tenant: str, id: str) -> set[str]:
        """Those of the keys that another conversation of the tenant needs too. Reads each conversation once."""
        wanted, found = {bytes.fromhex(key) for key in keys}, set[bytes]()
        with self._lock, explained(self._path):
            for (data,) in self._connection.execute("SELECT CAST(keys AS BLOB) FROM session WHERE tenant = ? AND id <> ?", (tenant, id)):
                found.update(wanted.intersection(_each_key(data)))
        return {key.hex() for key in found}

    def update_session(self, tenant: str, id: str, *, name: str | None, is_pinned: bool | None) -> None:
        """Set a conversation's name and pin; None: unchanged."""
        sql = "UPDATE session SET name = coalesce(?, name), is_pinned = coalesce(?, is_pinned) WHERE tenant = ? AND id = ?"
        self._many((sql, [(name, is_pinned, tenant, id)]))

    def remove_session(self, tenant: str, id: str) -> None:
        """Delete a conversation's row; its records stay."""
        self._many(("DELETE FROM session WHERE tenant = ? AND id = ?", [(tenant, id)]))

    def note_memo(self, memo: Memo, anchor: MemoAnchor) -> None:
        """Store the memo, if a segment with its anchor is stored and it is not too long."""
        if len(memo.data) <= MOST_MEMO_BYTES:
            sql = (
                "INSERT INTO memo SELECT :root, :name, :node, :anchor, :checksum, :data"
                f" WHERE EXISTS ({HOLDS_ANCHOR.format(node=':node', anchor=':anchor')}) ON CONFLICT DO UPDATE SET"
                " checksum = excluded.checksum, data = excluded.data"
            )
            row = {"root": anchor.root, "name": memo.name, "node": anchor.node, "anchor": token_bytes(anchor.tokens)}
            self._many((sql, [row | {"checksum": xxh3_128_hexdigest(memo.data), "data": memo.data}]))

    def memos(self, root: str, names: Iterable[str]) -> list[bytes]:
        """Data of the memos of these names in the chains under `root`. A damaged row is logged and left out."""
        sql = "SELECT CAST(data AS BLOB), checksum, name FROM memo WHERE root = ? AND name IN (SELECT value FROM json_each(?))"
        found: list[bytes] = []
        for data, checksum, name in self._rows(sql, root, json.dumps(list(names))):
            if xxh3_128_hexdigest(data) == checksum:
                found.append(data)
            else:
                log.warning("the memo %s of the index is damaged: what it held is computed again", name)
        return found

    def forget_owner(self, tenant: str) -> None:
        """Delete the rows of a tenant's conversations, responses and identities; records stay."""
        self._many(*((f"DELETE FROM {table} WHERE tenant = ?", [(tenant,)]) for table in ("session", "response", "identity")))

    def owners(self) -> list[str]:
        """All tenants with a conversation, a response or an identity."""
        sql = " UNION ".join(f"SELECT tenant FROM {table}" for table in ("session", "response", "identity"))
        return [tenant for (tenant,) in self._rows(sql)]

    def note_lost(self, infos: Iterable[RecordInfo], kind: LossKind, reason: str, now_s: float) -> None:
        """Note why records are gone, or were never written. The last LOST_RECORDS notes remain."""
        sql = (
            "INSERT INTO lost (parent, start, kind, why, lost_s, tokens) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (parent, tokens) DO UPDATE SET kind = excluded.kind, why = excluded.why, lost_s = excluded.lost_s"
        )
        rows = [(i.parent, i.start, kind, reason, now_s, token_bytes(i.tokens)) for i in infos]
        self._many((sql, rows), ("DELETE FROM lost WHERE number <= (SELECT max(number) FROM lost) - ?", [(LOST_RECORDS,)]))

    def lost(self, node: str, tokens: Sequence[int]) -> LostRecord | None:
        """The deepest lost record of this node whose tokens are a prefix of `tokens`."""
        sql = "SELECT number, start, tokens, kind, why, lost_s FROM lost WHERE parent = ?"
        lost = self._decoded(_lost, RowKey("lost", ("number",), (0,)), sql, node)
        within = [record for own, record in lost if own == tuple(tokens[: len(own)])]
        return max(within, key=lambda x: x.position, default=None)

    def note_identity(self, root: str, tenant: str, fields: Mapping[str, str], now_s: float) -> None:
        """Note the identity of the chains under `root`."""
        sql = "INSERT INTO identity VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET used_s = excluded.used_s"
        self._many((sql, [(root, tenant, json.dumps(dict(fields)), now_s)]))

    def identity(self, root: str) -> dict[str, str] | None:
        """Fields of the root's identity, None if none is noted."""
        return next((fields for *_, fields in self._identities("WHERE root = ?", root)), None)

    def last_root(self) -> tuple[str, str, dict[str, str]] | None:
        """(root, tenant, identity fields) of the root noted last; None if none is."""
        return next(iter(self._identities("ORDER BY used_s DESC LIMIT 1")), None)

    def identities(self, tenant: str, limit: int) -> list[dict[str, str]]:
        """Fields of the tenant's identities, last used first, at most `limit`."""
        return [fields for *_, fields in self._identities("WHERE tenant = ? ORDER BY used_s DESC LIMIT ?", tenant, limit)]

    def num_sessions_by_identity(self) -> list[tuple[dict[str, str], int]]:
        """(identity fields, number of conversations with records under it), the most first."""
        sql = (
            "SELECT fields, count(DISTINCT record.tenant || '/' || session) FROM record JOIN identity ON identity.root = record.root"
            " WHERE session <> '' GROUP BY fields ORDER BY 2 DESC"
        )
        return self._decoded(lambda row: (_fields(row[0]), row[1]), RowKey("identity", ("fields",), (0,)), sql)

    def _identities(self, where: str, *values: object) -> list[tuple[str, str, dict[str, str]]]:
        """(root, tenant, identity fields) of roots."""
        sql = f"SELECT root, tenant, fields FROM identity {where}"
        return self._decoded(lambda row: (row[0], row[1], _fields(row[2])), RowKey("identity", ("root",), (0,)), sql, *values)

    def _sessions(self, where: str, *values: object) -> list[Session]:
        return self._decoded(_session, RowKey("session", ("tenant", "id"), (0, 1)), f"SELECT * FROM session {where}", *values)


def _session(row: tuple[Any, ...]) -> Session:
    tenant, id, name, used_s, turns, num_tokens, is_pinned, data, title, client = row
    tenant, id, name, title, client = (checked(each, str) for each in (tenant, id, name, title, client))
    turns, num_tokens = (checked(each, int) for each in (turns, num_tokens))
    keys = tuple(key.hex() for key in _each_key(checked(data, bytes)))
    if len(data) % 16:
        raise ValueError(f"keys of {len(data)} bytes")
    return Session(tenant, id, name, checked(used_s, float), turns, num_tokens, bool(is_pinned), keys, title, client)


def _lost(row: tuple[Any, ...]) -> tuple[tuple[int, ...], LostRecord]:
    """The record's tokens, and what is noted of it."""
    _, start, data, kind, why, lost_s = row
    tokens = tokens_of(checked(data, bytes))
    return tokens, LostRecord(checked(start, int) + len(tokens), kind, checked(why, str), checked(lost_s, float))


def _fields(data: Any) -> dict[str, str]:
    """Fields of an identity. Raises ValueError."""
    fields = json.loads(checked(data, str))
    if not isinstance(fields, dict) or fields.keys() != set(Identity.__slots__) or not all(isinstance(f, str) for f in fields.values()):
        raise ValueError(f"identity {data[:100]}")
    return fields


def _each_key(data: bytes) -> Iterator[bytes]:
    return (data[i : i + 16] for i in range(0, len(data), 16))
