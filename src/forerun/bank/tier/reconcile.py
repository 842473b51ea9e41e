"""Repairs what a crash leaves: files without a row, rows without a file, temporary files. In the background, 1/256 of all keys at a time.

Knows nothing of payloads: of a file without a row only the head is read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.bank.tier import files, format
from forerun.bank.tier.index import Index
from forerun.errors import BankError, DamagedRecordError
from forerun.state.record import RecordInfo

log = logging.getLogger(__name__)

_ALL = [f"{i:02x}" for i in range(256)]


class Reconciler:
    """A thread that calls `step` once for each of `prefixes()`. A failure is logged, and left to the next opening."""

    def __init__(self, prefixes: Callable[[], Iterable[str]], step: Callable[[str], None]) -> None:
        self._prefixes, self._step = prefixes, step
        self._is_stopping = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bank-reconcile", daemon=True)
        self._thread.start()

    def wait(self, limit_s: float) -> bool:
        """Wait until it is done, at most `limit_s` seconds. Returns whether it is."""
        return self._done.wait(limit_s)

    def stop(self) -> None:
        """Stop after the step in progress."""
        self._is_stopping = True
        self._thread.join()

    def _run(self) -> None:
        for prefix in self._sorted_prefixes():
            if self._is_stopping:
                return
            with self._logged(prefix):
                self._step(prefix)
        self._done.set()

    def _sorted_prefixes(self) -> list[str]:
        with self._logged("all"):
            return sorted(self._prefixes())
        return []

    @contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        try:
            yield
        except BankError as error:
            log.warning("records %s... could not be reconciled: %s", what, error)


def prefixes(records: Path, index: Index) -> set[str]:
    """The prefixes of keys that have rows or files. Raises BankError, OSError."""
    return index.prefixes(_ALL) | ({path.name for path in records.glob("??")} & set(_ALL))


def step(folder: Path, quarantine: Path, index: Index) -> list[Path]:
    """Make the rows of one folder of records agree with its files. Returns the paths whose bytes are to be counted again. The caller
    excludes concurrent writes. Raises BankError, OSError.
    """
    names = {path.name for path in folder.glob("*")}
    for name in [n for n in names if n.endswith(".tmp")]:
        files.remove(folder / name)
        names.remove(name)
    keys, records = index.keys(folder.name), {n for n in names if len(n) == 32 and n.startswith(folder.name)}
    gone, orphans = keys - records, records - keys
    if gone:
        index.remove_gone(index.find(gone).values(), time.time())
    if orphans:
        index.add(_heads(folder, quarantine, orphans), time.time())
    odd = [folder / name for name in names - keys]
    return odd + [quarantine / name for name in orphans]


def _heads(folder: Path, quarantine: Path, names: set[str]) -> Iterator[RecordInfo]:
    """What the files' heads hold; damaged ones are quarantined."""
    for path in (folder / name for name in sorted(names)):
        try:
            info = format.read_info(path)
            if info.key != path.name:
                raise DamagedRecordError(f"{path}: expected its own key, found {info.key}")
            yield info
        except DamagedRecordError:
            files.move(path, quarantine / path.name)
