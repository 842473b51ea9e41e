"""Writes records to disk, evicting others there when the quota is reached: the least likely to be needed first (`policy.rank_s`).

Knows no queue and no cache.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, takewhile

from forerun.bank.protection import Protections
from forerun.bank.stored import usable_keys
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.format import file_bytes
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import Entry, RecordLabel
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.errors import BankFullError
from forerun.state.record import Record, RecordInfo

_LOOKED_UP = 8  # records at first; twice as many each time that these do not suffice


class EvictingDisk:
    """A disk tier that evicts; for all threads, one record at a time. live: rows of the conversations that are live in RAM. protections:
    what requests that wait would restore.
    """

    def __init__(self, disk: DiskTier, live: Callable[[], Iterable[Session]], protections: Protections) -> None:
        self.disk, self._live, self._protections = disk, live, protections
        self._lock = threading.Lock()

    def put(self, record: Record, label: RecordLabel) -> None:
        """Write the record, evicting others if needed. Raises BankError; BankFullError if nothing may be evicted for it."""
        with self._lock:
            self._put(record, label)

    def reserve(self, num_bytes: int) -> None:
        """Evict records, if needed, until so many bytes may be added to the index. Raises BankError; BankFullError if they may not."""
        with self._lock:
            while True:
                try:
                    return self.disk.check_limits(num_bytes)
                except BankFullError as error:
                    if error.reason != "quota" or not self._evict(num_bytes, math.inf):
                        raise

    def _put(self, record: Record, label: RecordLabel) -> None:
        while True:
            try:
                self.disk.put(record)
                break
            except BankFullError as error:
                if error.reason != "quota" or not (
                    self._evict(file_bytes(record.info), label.rank_s) or self._make_way(record.info, label)
                ):
                    self._check_pins(record.info)
                    raise
        self.disk.index.label(record.info.key, label)
        if record.info.kind == "segment":
            self._drop_shorter(record.info, label)

    def _drop_shorter(self, segment: RecordInfo, label: RecordLabel) -> None:
        for info in self._shorter(segment, label):
            self.disk.delete(info.key)

    def _make_way(self, record: RecordInfo, label: RecordLabel) -> bool:
        """Drop the shorter segments before rather than after writing this record, if it fits then. Returns whether they were dropped."""
        shorter = self._shorter(record, label) if record.kind == "segment" else []
        if not shorter or not self.disk.fits(file_bytes(record) - sum(map(file_bytes, shorter))):
            return False
        self._drop_shorter(record, label)
        return True

    def _shorter(self, segment: RecordInfo, label: RecordLabel) -> list[RecordInfo]:
        """The shorter segments at the same node, whose rows this one holds too; except one with which another conversation ends, as the
        rest of this segment does not belong to it.
        """
        index = self.disk.index
        found = (info for info in index.along("segment", segment.parent, segment.tokens) if info.key != segment.key)
        return [info for info in found if not index.is_end_of_another(info, label.tenant, label.session)]

    def _evict(self, num_bytes: int, below_rank_s: float) -> bool:
        """Free bytes until a record of `num_bytes` fits, but for what the index grows by: the quarantine first, then what ranks lowest.
        Returns whether anything was freed.
        """
        if self.disk.quarantined:
            self.disk.clear_quarantine()
            return True
        index = self.disk.index
        evicted = list(self._delete_until_fits(num_bytes, self._victims(num_bytes, below_rank_s)))
        index.note_lost([entry.info for entry in evicted], "evicted", "the disk quota was reached", time.time())
        index.forget_empty_sessions({(entry.tenant, entry.session) for entry in evicted})
        return bool(evicted)

    def _victims(self, num_bytes: int, below_rank_s: float) -> list[Entry]:
        """What is evicted for a record of `num_bytes`, the lowest rank first; nothing if it would not fit even then.

        Nothing of a rank as high as that of the record (a conversation larger than the quota would evict its own beginning), nothing that a
        pinned conversation or a waiting request needs, and what a live one needs only if there is nothing else.
        """
        index, missing_bytes, victims = self.disk.index, self.disk.missing_bytes(num_bytes), list[Entry]()
        pinned, live = usable_keys(index, index.pinned_sessions()), usable_keys(index, self._live())
        is_protected, of_live = self._protections.of(self.disk), (e for e in self._lowest(pinned, below_rank_s) if e.info.key in live)
        for entry in chain(self._lowest(pinned | live, below_rank_s), of_live):
            if not is_protected(entry.info):
                victims.append(entry)
                missing_bytes -= file_bytes(entry.info)
            if missing_bytes <= 0:
                return victims
        return []

    def _lowest(self, spared: Collection[str], below_rank_s: float) -> Iterator[Entry]:
        """Entries below this rank, the lowest first, without these keys."""
        num_seen, limit = 0, _LOOKED_UP
        while entries := self.disk.index.lowest(limit, spared)[num_seen:]:
            yield from takewhile(lambda entry: entry.rank_s < below_rank_s, entries)
            if entries[-1].rank_s >= below_rank_s:
                return
            num_seen, limit = num_seen + len(entries), 2 * limit

    def _delete_until_fits(self, num_bytes: int, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Delete these records one by one until one of `num_bytes` fits. Yields the deleted ones."""
        for entry in entries:
            if self.disk.fits(num_bytes):
                return
            self.disk.delete(entry.info.key)
            yield entry

    def _check_pins(self, info: RecordInfo) -> None:
        """Raises BankFullError if the record does not fit next to pinned conversations, whatever else is evicted."""
        index, limit_bytes = self.disk.index, self.disk.limit_bytes
        pinned_bytes = index.bytes_of(usable_keys(index, index.pinned_sessions()))
        fixed_bytes = self.disk.num_bytes - index.totals.record_bytes + INDEX_SLACK_BYTES
        if pinned_bytes and fixed_bytes + pinned_bytes + file_bytes(info) > limit_bytes:
            found = f"pinned conversations take {pinned_bytes} of {limit_bytes} bytes"
            raise BankFullError(found, reason="pinned conversations fill the quota", hint="unpin one, or raise --bank-disk-bytes")
