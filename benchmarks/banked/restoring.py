"""How long does a conversation of 24,000 tokens take from a disk whose page cache was dropped, against a plain read of the same files?

Records of the bundled model's sizes, with random numbers in them, as nothing is computed. Three turns made snapshots; the last is restored.
Interleaved, cold each time: a restore by a bank that was just opened, and a read of the files that it opened. Bytes read are those
of all calls that read, the index's included.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from banked.traffic import counted
from evidence import interleaved, ratio_interval
from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.tier import format
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, secret
from forerun.kernels import arithmetic
from forerun.models.load import DEMO_MODEL, load
from forerun.state.conversion import materialise
from forerun.state.layout import Contiguous
from forerun.state.record import Identity, Kind, Record, RecordInfo
from forerun.state.store import Arena

TURNS, REPEATS, HEADROOM_TOKENS = (8_000, 16_000, 24_000), 15, 256
CONFIG = {"turns": TURNS, "repeats": REPEATS, "headroom_tokens": HEADROOM_TOKENS}
BYTES_LIMIT, SECONDS_LIMIT = 1.05, 1.25


def measure() -> dict[str, Any]:
    """Samples of both, in seconds, and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        stored = StoredConversation(Path(folder))
        stored.restore()
        samples = interleaved({"restore": stored.restore, "plain_read": stored.plain_read}, REPEATS)
        found: dict[str, Any] = {"needed_bytes": stored.needed_bytes, "file_bytes": sum(p.stat().st_size for p in stored.files)}
    found |= {"num_files": len(stored.files), "read_bytes": max(stored.read_bytes), "from_disk_bytes": min(stored.from_disk_bytes)}
    found |= {"seconds": samples, "median_s": {name: statistics.median(values) for name, values in samples.items()}}
    found["restore_over_plain_read"] = ratio_interval(samples["restore"], samples["plain_read"])
    found["read_over_needed"] = found["read_bytes"] / found["needed_bytes"]
    print(f"read {found['read_over_needed']:.3f} of what is needed; restore over plain read: {found['restore_over_plain_read']}")
    return found


def checks(found: dict[str, Any]) -> dict[str, bool]:
    """What must hold."""
    return {
        "a restore reads at most 1.05 of the prefix and one snapshot": found["read_over_needed"] <= BYTES_LIMIT,
        "the page cache was dropped": found["from_disk_bytes"] >= 0.95 * found["needed_bytes"],
        "it takes at most 1.25 of a plain read": found["restore_over_plain_read"]["median"] <= SECONDS_LIMIT,
    }


class StoredConversation:
    """A conversation in a folder; both ways return seconds. files: those that a restore opens."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.read_bytes, self.from_disk_bytes = folder, list[int](), list[int]()
        here = arithmetic.here()
        self.spec = load(DEMO_MODEL, here.numerics, here.dtype, lambda doing, done_frac: None).family.spec
        rng = random.Random(0)
        self.tokens = [rng.randrange(8000) for _ in range(TURNS[-1])]
        self.needed_bytes = TURNS[-1] * self.spec.bytes_per_token + self.spec.bytes_per_snapshot
        self.files: set[Path] = set()
        self._write()

    def restore(self) -> float:
        bank = self._open()
        self._drop_page_cache()
        before, start = counted(), time.perf_counter()
        restored = bank.restore(self.tokens, tenant="", session=None, layout=Contiguous(), headroom_tokens=HEADROOM_TOKENS)
        mx.eval(restored.cache.arrays())
        seconds, after = time.perf_counter() - start, counted()
        bank.close()
        assert (restored.source, restored.reused_tokens) == ("ssd", TURNS[-1]), restored.miss_reason
        self.read_bytes.append(after["rchar"] - before["rchar"])
        self.from_disk_bytes.append(after["read_bytes"] - before["read_bytes"])
        return seconds

    def plain_read(self) -> float:
        self._drop_page_cache()
        start, buffer = time.perf_counter(), bytearray(1 << 22)
        for path in sorted(self.files):
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        return time.perf_counter() - start

    def _write(self) -> None:
        """Three turns; then note which files a restore of the last one opens."""
        bank = self._open()
        for stop in TURNS:
            self._turn(bank, stop)
        assert bank.flush(120)
        bank.close()
        read = format.read
        format.read = lambda path: (self.files.add(path), read(path))[1]
        try:
            self.restore()
        finally:
            format.read = read
        self.read_bytes.clear()
        self.from_disk_bytes.clear()

    def _turn(self, bank: Bank, stop: int) -> None:
        cache = materialise(Arena(self.spec), self._segments(stop), self._record("snapshot", 0, stop), Contiguous(), 0)
        bank.remember(cache, self.tokens[:stop], [cache.snapshot()], FinishedTurn("talk", "", 1, 0, 1))

    def _segments(self, stop: int) -> list[Record]:
        return [self._record("segment", start, min(start + 1024, stop)) for start in range(0, stop, 1024)]

    def _record(self, kind: Kind, start: int, stop: int) -> Record:
        num_bytes = self.spec.bytes_per_snapshot if kind == "snapshot" else (stop - start) * self.spec.bytes_per_token
        payload = np.random.default_rng(stop).standard_normal(num_bytes // 4, np.float32).data.cast("B")
        return Record.of(RecordInfo(kind, "", "", "", start, tuple(self.tokens[start:stop])), payload)

    def _open(self) -> Bank:
        identity = Identity("benchmark", "benchmark", "benchmark", "benchmark", "float32", "fast")
        disk = DiskTier(self.folder, limit_bytes=1 << 30, daily_limit_bytes=1 << 62, index=hold(self.folder))
        assert disk.wait_until_reconciled(60)
        return Bank(self.spec, identity, disk=disk, secret=secret(self.folder), ram_limit_bytes=1 << 30)

    def _drop_page_cache(self) -> None:
        for path in (self.folder / "records").rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
