"""The protocol of a store of records. A tier never sees a cache, a layout or MLX.

Contract (tests/contracts/test_tier.py, run against every tier):
- `put` then `get` returns an equal record; `put` of a present key is a no-op; `get` of an absent key raises KeyError;
- `get` verifies what it returns; a damaged record raises DamagedRecordError and is absent from then on;
- `delete` of an absent key is a no-op; `index` has a row for each record; `num_bytes` counts all bytes that the tier occupies;
- methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forerun.bank.tier.index import Index
from forerun.state.record import Record
from forerun.values import Source


class Tier(Protocol):
    """A store of records. source: what a response reports for state from here. index: which records exist, and what hangs from a node."""

    source: Source
    index: Index

    def put(self, record: Record) -> None:
        """Store the record. On return it is durable, as far as the tier is (disk: through a power cut). Raises BankError."""

    def get(self, key: str) -> Record:
        """The record of that key, verified. Raises KeyError, DamagedRecordError."""

    def get_many(self, keys: Sequence[str]) -> list[Record]:
        """The records of these keys, in their order, as by `get`; a tier may read them concurrently."""

    def delete(self, key: str) -> None:
        """Delete the record and free its bytes."""

    def set_aside(self, key: str) -> None:
        """Quarantine a record whose bytes are whole but do not fit: it is never returned again."""

    @property
    def num_bytes(self) -> int:
        """Bytes occupied, overhead included."""

    def close(self) -> None:
        """Release files and threads. No method may be called afterwards."""
