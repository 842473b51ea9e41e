"""The tier on disk: a folder of immutable files named by their records' keys, and an index of them.

    index.db  lock  secret  records/ab/ab12...  quarantine/ab12...  quarantine/format-6/

A file appears whole or not at all; its row comes last, and is rebuilt from the file if lost. A damaged file is quarantined, counted, and
never served. Knows no retention policy: when the quota is reached, `put` raises, and the bank decides what is evicted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from forerun.bank.tier import files, format, reconcile
from forerun.bank.tier.folder import LOCK, QUARANTINE, RECORDS, check_secret, view
from forerun.bank.tier.index import Index
from forerun.bank.tier.quota import INDEX_SLACK_BYTES, DiskUsage, daily_limit, disk_limit
from forerun.bank.tier.reconcile import Reconciler
from forerun.config import Config
from forerun.errors import BankError, BankFullError, BankGoneError, DamagedRecordError
from forerun.state.record import Record, RecordInfo
from forerun.values import Source

READERS = 3


class DiskTier:
    """Records in a folder. If `index` is a view, nothing is changed, and writing raises BankError.

    limit_bytes: that the folder may hold. daily_limit_bytes: that may be written per day (UTC).
    """

    source: Source = "ssd"

    def __init__(self, folder: Path, *, limit_bytes: int, daily_limit_bytes: int, index: Index) -> None:
        self.index = index
        self._folder, self.limit_bytes, self.daily_limit_bytes = folder, limit_bytes, daily_limit_bytes
        self._records, self._quarantine = folder / RECORDS, folder / QUARANTINE
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(READERS, "bank-reader")
        self._usage = DiskUsage(self._records, index)
        if not index.is_view:
            with files.explained(f"cannot open {folder}"):
                self._prepare()
        self._usage.mark_dirty(*(path for path in folder.glob("*") if path not in (self._records, self._quarantine)))
        odd = (path for path in self._records.glob("*") if len(path.name) != 2 or path.is_file())
        self._usage.mark_dirty(*odd, *self._quarantine.glob("*"))
        self._reconciling = Reconciler(self._prefixes, self._reconcile) if not index.is_view else None

    @classmethod
    def of(cls, config: Config, index: Index) -> DiskTier:
        """The tier of the settings' folder, with their limits, or else those derived from the disk's free bytes."""
        limit_bytes = disk_limit(config, index.totals.record_bytes)
        return cls(config.bank_path, limit_bytes=limit_bytes, daily_limit_bytes=daily_limit(config), index=index)

    @classmethod
    def view(cls, folder: Path) -> DiskTier:
        """The tier of a folder, read-only; another process may hold the folder. Raises BankError if there is none."""
        return cls(folder, limit_bytes=0, daily_limit_bytes=0, index=view(folder))

    def put(self, record: Record) -> None:
        """Write the record; durable on return. Raises BankFullError, BankError; then nothing of it is left."""
        path = self._path(record.info.key)
        with self._changing(path):
            if self.index.present([record.info.key]):
                return
            chunks = format.chunks(record)
            self.check_limits(sum(len(chunk) for chunk in chunks))
            files.make_folder(path.parent)
            files.publish(path, chunks)
            try:
                self.index.add_written(record.info, time.time(), today())
            except BankError:
                path.unlink()
                raise

    def get(self, key: str) -> Record:
        """The record of that key, every byte checked. Raises KeyError, DamagedRecordError (it is quarantined), BankError."""
        return self._get(self.index.find([key])[key])

    def get_many(self, keys: Sequence[str]) -> list[Record]:
        """The records of these keys, in their order, read concurrently. Raises as `get` does for the first that fails."""
        rows = self.index.find(keys)
        return list(self._readers.map(self._get, [rows[key] for key in keys]))

    def damage(self, key: str) -> str:
        """What is wrong with a record; "" if nothing is, or if a running server removed it meanwhile. Raises BankError."""
        try:
            self.get(key)
        except DamagedRecordError as error:
            return str(error)
        except KeyError:
            return ""
        return ""

    def delete(self, key: str) -> None:
        """Delete the record's file and row."""
        path = self._path(key)
        with self._changing(path):
            if self.index.present([key]):
                files.remove(path)
                self.index.remove([key])

    def set_aside(self, key: str) -> None:
        """Move the record's file to quarantine."""
        for row in self.index.find([key]).values():
            self._set_aside(self._path(key), row)

    def clear_quarantine(self) -> None:
        """Delete what is in quarantine."""
        paths = list(self._quarantine.glob("*"))
        with self._changing(*paths):
            for path in paths:
                files.remove(path)

    def scrub(self, keys: Iterable[str]) -> None:
        """Leave no trace in the folder of the deleted records of these keys, even after a power cut. Clears the quarantine, the notes of
        lost records and the index's log.
        """
        self.clear_quarantine()
        with self._changing():
            for folder in {self._path(key).parent for key in keys}:
                files.sync_folder(folder)
            self.index.scrub()

    def announce(self, address: str) -> None:
        """Write the server's address into the lock file, where commands find it."""
        with self._changing(self._folder / LOCK):
            self.index.announce(address)

    @property
    def quarantined(self) -> int:
        """Number of entries in quarantine: damaged files, and folders of an earlier format."""
        return sum(1 for _ in self._quarantine.glob("*"))

    @property
    def num_bytes(self) -> int:
        """Bytes of all files under the folder: records, index, quarantine, leftovers of a crash. Exact while no call is in progress."""
        return self._usage.num_bytes

    def fits(self, num_bytes: int) -> bool:
        """Whether a record file of this size fits next to what the folder holds now."""
        return self.missing_bytes(num_bytes) <= 0

    def missing_bytes(self, num_bytes: int) -> int:
        """Bytes that must be freed for a record file of this size to fit; negative: that stay free beside it."""
        return num_bytes + INDEX_SLACK_BYTES + self.num_bytes - self.limit_bytes

    def check_limits(self, num_bytes: int) -> None:
        """Raises BankFullError if so many bytes may not be written now."""
        if num_bytes + INDEX_SLACK_BYTES > self.limit_bytes:
            raise BankFullError(f"{num_bytes} bytes do not fit into {self.limit_bytes}", reason="size", hint="raise --bank-disk-bytes")
        if not self.fits(num_bytes):
            needed = f"{num_bytes} bytes do not fit: {self.num_bytes} of {self.limit_bytes} are used"
            raise BankFullError(f"{self._folder}: {needed}", reason="quota", hint="raise --bank-disk-bytes or run `forerun bank prune`")

        written_bytes = self.written_today_bytes
        if num_bytes > self.daily_limit_bytes - written_bytes:
            needed = f"{num_bytes} bytes are not written: {written_bytes} of {self.daily_limit_bytes} were today"
            hint = "writing resumes tomorrow (UTC); or raise --bank-daily-write-bytes"
            raise BankFullError(f"{self._folder}: {needed}", reason="daily write budget", hint=hint)

    @property
    def written_today_bytes(self) -> int:
        """Bytes of the records and responses written today (UTC)."""
        return self.index.totals.written_on(today())

    def wait_until_reconciled(self, limit_s: float) -> bool:
        """Wait until rows and files agree again after a crash, at most `limit_s` seconds. Returns whether they do."""
        return self._reconciling is None or self._reconciling.wait(limit_s)

    def close(self) -> None:
        """Close the index and release the folder."""
        if self._reconciling is not None:
            self._reconciling.stop()
        self._readers.shutdown()
        self.index.close()

    def _get(self, row: RecordInfo) -> Record:
        path = self._path(row.key)
        with files.explained(f"cannot read {path}"):
            try:
                return _matching(format.read(path), row, path)
            except DamagedRecordError:
                self._set_aside(path, row)
                raise
            except FileNotFoundError:
                self._forget_missing(path, row)
                raise KeyError(row.key) from None

    def _path(self, key: str) -> Path:
        return self._records / key[:2] / key

    @contextmanager
    def _changing(self, *paths: Path) -> Iterator[None]:
        """Excludes other changes of the folder; afterwards the bytes of `paths` are measured again, whatever happened."""
        if self.index.is_view:
            raise BankError(f"{self._folder} was opened read-only")
        with self._lock, files.explained(f"cannot change {self._folder}"):
            if not self._records.is_dir():
                raise BankGoneError(
                    f"{self._folder} was removed while the server runs", hint="restart the server: it creates the folder again"
                )
            try:
                yield
            finally:
                self._usage.mark_dirty(*(part for path in paths for part in (path, files.temporary(path))))

    def _set_aside(self, path: Path, row: RecordInfo) -> None:
        if self.index.is_view:
            return
        aside = self._quarantine / path.name
        with self._changing(path, aside):
            self.index.remove([path.name])
            if path.is_symlink() or path.exists():
                files.move(path, aside)
            self.index.note_damaged([row], "it was quarantined", time.time())

    def _forget_missing(self, path: Path, row: RecordInfo) -> None:
        if self.index.is_view:
            return
        with self._changing(path):
            if files.size(path) is None:
                self.index.remove_gone([row], time.time())

    def _prepare(self) -> None:
        """Make folders and secret. Folders that a dead process made in `records` are synced, so that later only new ones need it."""
        files.make_folder(self._quarantine)
        files.make_folder(self._records)
        files.sync_folder(self._records)
        check_secret(self._folder, self.index)

    def _prefixes(self) -> Iterable[str]:
        with files.explained(f"cannot reconcile {self._folder}"):
            return reconcile.prefixes(self._records, self.index)

    def _reconcile(self, prefix: str) -> None:
        """Make rows and files of these keys agree."""
        with self._lock, files.explained(f"cannot reconcile {self._folder}"):
            self._usage.mark_dirty(*reconcile.step(self._records / prefix, self._quarantine, self.index))


def _matching(record: Record, row: RecordInfo, path: Path) -> Record:
    """The record. Raises DamagedRecordError if it is not the one of this row."""
    if record.info != row:
        raise DamagedRecordError(f"{path}: expected {_name(row)}, found {_name(record.info)}")
    return record


def _name(info: RecordInfo) -> str:
    return f"{info.kind} {info.key} {info.start}..{info.stop} ({info.num_bytes} bytes)"


def today() -> str:
    """Today in UTC, ISO 8601."""
    return datetime.now(UTC).date().isoformat()
