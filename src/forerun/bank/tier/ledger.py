"""How many bytes lie under the bank's folder: what the rows say of the records' files, and the difference that files make without a row, or
that are not as long as their row says. Lists nothing at opening. Knows nothing of what the files hold.
"""

from __future__ import annotations

import threading
from pathlib import Path

from forerun.bank.tier import files
from forerun.bank.tier.format import file_bytes
from forerun.bank.tier.index import Index


class Ledger:
    """Counts bytes. Whoever changes a file, or finds one, says so by `doubt`; it is looked at when a sum is next asked for."""

    def __init__(self, records: Path, index: Index) -> None:
        self._records, self._index = records, index
        self._doubtful: set[Path] = set()
        self._differences: dict[Path, int] = {}
        self._lock = threading.Lock()

    def doubt(self, *paths: Path) -> None:
        """These files may have changed."""
        with self._lock:
            self._doubtful.update(set(paths) - set(self._index.paths))

    @property
    def num_bytes(self) -> int:
        """Bytes of all files known so far, those of the index included. Exact when no call is at work."""
        with self._lock:
            self._look()
            return self._index.totals.record_bytes + sum(self._differences.values()) + self._index.num_bytes

    def _look(self) -> None:
        rows = self._index.find({path.name for path in self._doubtful})
        for path in self._doubtful:
            row = rows.get(path.name) if path.parent.parent == self._records else None
            with files.explained(f"cannot look at {path}"):
                difference = files.occupied(path) - (file_bytes(row) if row else 0)
            if difference:
                self._differences[path] = difference
            else:
                self._differences.pop(path, None)
        self._doubtful.clear()
