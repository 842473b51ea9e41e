"""What an index remembers besides the records that are there: conversations, what was lost and why, and under which identities was stored.

Knows nothing of files or of what is worth keeping.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forerun.bank.database import Database
from forerun.state.record import RecordInfo, token_bytes, tokens_of

LOST_RECORDS = 200
LossKind = Literal["evicted", "damaged", "not stored"]


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


class History(Database):
    """Tables of an index. Methods may be called from several threads; all raise BankError if the database fails."""

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

    def remove_session(self, tenant: str, name: str) -> None:
        """Forget a conversation; its records stay."""
        self._many(("DELETE FROM session WHERE tenant = ? AND name = ?", [(tenant, name)]))

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


def _session(row: tuple[Any, ...]) -> Session:
    tenant, name, used_s, turns, num_tokens, is_pinned, keys = row
    return Session(tenant, name, used_s, turns, num_tokens, bool(is_pinned), tuple(keys[i : i + 16].hex() for i in range(0, len(keys), 16)))
