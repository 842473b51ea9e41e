"""The table of stored responses in an index: a row each, and apart from it the data, so that noting a use rewrites no text.

Knows nothing of what the data say, of limits or of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_128_hexdigest

from forerun.bank.tier.database import Database, RowKey, checked

_KEY = RowKey("response", ("tenant", "id"), (0, 1))
COUNT_WRITTEN = "UPDATE total SET written_bytes = ? + iif(day = ?, written_bytes, 0), day = ?"  # number of bytes, day, day
# The response with this tenant and id, and those that it continues. UNION: a cycle, which only damage can make, ends.
_CHAIN = (
    "WITH RECURSIVE chain (number, tenant, previous) AS (SELECT number, tenant, previous FROM response WHERE tenant = ? AND id = ?"
    " UNION SELECT r.number, r.tenant, r.previous FROM chain JOIN response r ON r.tenant = chain.tenant AND r.id = chain.previous)"
    " SELECT number FROM chain"
)


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """A response. previous: id of the one that it continues, "" for none. session: id of its conversation, "" if unknown. data: opaque."""

    tenant: str
    id: str
    previous: str
    session: str
    data: bytes


class ResponseTable(Database):
    """Methods may be called from several threads; all raise BankError if the database fails."""

    def add_response(self, row: ResponseRow, now_s: float, day: str) -> None:
        """Insert or replace a response that is used now, and count its bytes, in one transaction."""
        name, num_bytes = (row.tenant, row.id), len(row.data)
        self._many(
            ("DELETE FROM response WHERE tenant = ? AND id = ?", [name]),
            (
                "INSERT INTO response (tenant, id, previous, session, used_s, num_bytes) VALUES (?, ?, ?, ?, ?, ?)",
                [(*name, row.previous, row.session, now_s, num_bytes)],
            ),
            (
                "INSERT INTO response_data SELECT number, ?, ? FROM response WHERE tenant = ? AND id = ?",
                [(xxh3_128_hexdigest(row.data), row.data, *name)],
            ),
            (COUNT_WRITTEN, [(num_bytes, day, day)]),
        )

    def response(self, tenant: str, id: str) -> ResponseRow | None:
        """The tenant's response of that id, None if there is none."""
        sql = (
            "SELECT tenant, id, previous, session, CAST(data AS BLOB), checksum FROM response LEFT JOIN response_data USING (number)"
            " WHERE tenant = ? AND id = ?"
        )
        return next(iter(self._decoded(_row, _KEY, sql, tenant, id)), None)

    def has_response(self, tenant: str, id: str) -> bool:
        """Whether there is such a response; its data are not read."""
        return bool(self._rows("SELECT 1 FROM response WHERE tenant = ? AND id = ?", tenant, id))

    def touch_responses(self, tenant: str, id: str, now_s: float) -> None:
        """Note a use of a response and of all that it continues: a conversation ages as one."""
        self._many((f"UPDATE response SET used_s = ? WHERE number IN ({_CHAIN})", [(now_s, tenant, id)]))

    def remove_responses(self, tenant: str) -> None:
        """Delete all of the tenant's responses."""
        self._many(("DELETE FROM response WHERE tenant = ?", [(tenant,)]))

    def remove_response(self, tenant: str, id: str) -> None:
        """Delete a response; an absent one is ignored."""
        self._many(("DELETE FROM response WHERE tenant = ? AND id = ?", [(tenant, id)]))

    def remove_responses_of(self, tenant: str, session: str) -> None:
        """Delete the responses of a conversation."""
        self._many(("DELETE FROM response WHERE tenant = ? AND session = ? AND session <> ''", [(tenant, session)]))

    def remove_responses_before(self, used_s: float) -> None:
        """Delete those of all tenants that were last used before this time, Unix seconds."""
        self._many(("DELETE FROM response WHERE used_s < ?", [(used_s,)]))

    def remove_least_used_response(self) -> None:
        """Delete the one whose last use is the longest ago; of those used at once the last, since the others can do without it."""
        self._many(("DELETE FROM response WHERE number = (SELECT number FROM response ORDER BY used_s, number DESC LIMIT 1)", [()]))

    @property
    def response_bytes(self) -> int:
        """Bytes of the data of all responses."""
        return int(self._rows("SELECT coalesce(sum(num_bytes), 0) FROM response")[0][0])


def _row(row: tuple[Any, ...]) -> ResponseRow:
    tenant, id, previous, session, data, checksum = row
    if xxh3_128_hexdigest(checked(data, bytes)) != checksum:
        raise ValueError(f"the response {id!r} fails its checksum")
    tenant, id, previous, session = (checked(each, str) for each in (tenant, id, previous, session))
    return ResponseRow(tenant, id, previous, session, data)
