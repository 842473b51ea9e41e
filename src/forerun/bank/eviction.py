"""Puts records on disk, and makes room for them there by letting go of what is least likely to be asked for again (`retain.rank_s`).

Knows no queue and no cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from forerun.bank.stored import usable_keys
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.format import file_bytes
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import RecordLabel
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.errors import BankFullError
from forerun.state.record import Record, RecordInfo

_EVICT_AT_ONCE = 8


class EvictingDisk:
    """On one disk tier. live: the conversations that are in RAM as live caches."""

    def __init__(self, disk: DiskTier, live: Callable[[], Iterable[Session]]) -> None:
        self.disk, self._live = disk, live

    def put(self, record: Record, label: RecordLabel) -> None:
        """Write the record, making room for it. Raises BankError; BankFullError where nothing may go for it."""
        while True:
            try:
                self.disk.put(record)
                break
            except BankFullError as error:
                if error.reason != "quota" or not self._evict(label.rank_s):
                    self._check_pins(record.info)
                    raise
        self.disk.index.label(record.key, label)
        if record.kind == "segment":
            self._drop_shorter(record, label)

    def _drop_shorter(self, record: Record, label: RecordLabel) -> None:
        """A shorter tail at the same place holds nothing that this segment does not hold. It stays if another conversation ends with it:
        of that one the rest of this segment would be no part.
        """
        index = self.disk.index
        for info in index.along("segment", record.parent, record.tokens):
            if info.key != record.key and not index.is_end_of_another(info, label.tenant, label.session):
                self.disk.delete(info.key)

    def _evict(self, below_rank_s: float) -> bool:
        """Make some room: what was set aside first, then what ranks lowest, but nothing that ranks as high as what is to be written (a
        conversation larger than the quota would eat its own beginning), nothing that a pinned conversation needs, and what a live one
        needs only if there is nothing else. Returns whether there was anything.
        """
        if self.disk.quarantined:
            self.disk.clear_quarantine()
            return True
        index = self.disk.index
        pinned = usable_keys(index, index.pinned_sessions())
        groups = (index.lowest(_EVICT_AT_ONCE, spared) for spared in (pinned | usable_keys(index, self._live()), pinned))
        going = next(filter(None, ([entry for entry in group if entry.rank_s < below_rank_s] for group in groups)), [])
        for entry in going:
            self.disk.delete(entry.info.key)
        index.note_lost([entry.info for entry in going], "evicted", "the disk quota was reached", time.time())
        index.forget_empty_sessions({(entry.tenant, entry.session) for entry in going})
        return bool(going)

    def _check_pins(self, info: RecordInfo) -> None:
        """Raises BankFullError where pinned conversations leave no room for the record, whatever else went."""
        index, limit_bytes = self.disk.index, self.disk.limit_bytes
        pinned_bytes = index.bytes_of(usable_keys(index, index.pinned_sessions()))
        fixed_bytes = self.disk.num_bytes - index.totals.record_bytes + INDEX_SLACK_BYTES
        if pinned_bytes and fixed_bytes + pinned_bytes + file_bytes(info) > limit_bytes:
            told = f"pinned conversations take {pinned_bytes} of {limit_bytes} bytes"
            raise BankFullError(told, reason="pinned conversations fill the quota", hint="unpin one, or raise --bank-disk-bytes")
