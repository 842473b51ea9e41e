"""The tier in RAM: a dict of records and their index. Eviction is decided by the bank."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from forerun.bank.tier.index import Index
from forerun.state.record import Record
from forerun.values import Source


class MemoryTier:
    """Records in host memory."""

    source: Source = "ram"

    def __init__(self) -> None:
        self.index = Index.in_memory()
        self._records: dict[str, Record] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    def put(self, record: Record) -> None:
        """Store the record. Its payload is not copied."""
        with self._lock:
            if record.info.key in self._records:
                return
            self.index.add([record.info], time.time())
            self._records[record.info.key] = record
            self._num_bytes += record.info.num_bytes

    def get(self, key: str) -> Record:
        """The record of that key. Raises KeyError."""
        return self._records[key]

    def get_many(self, keys: Sequence[str]) -> list[Record]:
        """The records of these keys, in their order. Raises KeyError."""
        return [self._records[key] for key in keys]

    def delete(self, key: str) -> None:
        """Delete the record."""
        with self._lock:
            if key in self._records:
                self.index.remove([key])
                self._num_bytes -= self._records.pop(key).info.num_bytes

    set_aside = delete

    @property
    def num_bytes(self) -> int:
        """Bytes of all payloads."""
        return self._num_bytes

    def close(self) -> None:
        """Drop all records."""
        self._records.clear()
        self.index.close()
