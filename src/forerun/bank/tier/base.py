"""The protocol of a place where records are kept. A tier stores and returns records; it never sees a cache, a layout or MLX.

Contract (tests/contracts/test_tier.py, run against every tier):
- `put` then `get` returns an equal record; `put` of a key that is there is a no-op; `get` of a key that is not raises KeyError;
- `get` verifies what it returns; a damaged record raises DamagedRecordError and is not there from then on;
- `delete` of a key that is not there is a no-op; `index` has a row of each that is; `num_bytes` counts all that the tier occupies;
- methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forerun.bank.tier.index import Index
from forerun.state.record import Record
from forerun.values import Source


class Tier(Protocol):
    """A store of records. `source` is what a response reports for state that came from here; `index` answers what hangs from a node."""

    source: Source
    index: Index

    def put(self, record: Record) -> None:
        """Keep the record. On return it survives what this kind of tier survives (a disk tier: a power cut). Raises BankError."""

    def get(self, key: str) -> Record:
        """The record of that key, verified. Raises KeyError, DamagedRecordError."""

    def get_many(self, keys: Sequence[str]) -> list[Record]:
        """The records of these keys, in their order, as `get` gives them; a tier may read them side by side."""

    def delete(self, key: str) -> None:
        """Forget the record and free its bytes."""

    def set_aside(self, key: str) -> None:
        """Serve the record never again: its bytes are whole, but they are not what they should be."""

    @property
    def num_bytes(self) -> int:
        """Bytes occupied, overhead included."""

    def close(self) -> None:
        """Release what the tier holds open. Nothing may be called afterwards."""
