"""The cost of restoring a long conversation, and of the first steps after it. Knows a bank in its own folder."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, secret
from forerun.decode.compiled import StepTable
from forerun.state.cache import Cache
from forerun.state.layout import Contiguous
from forerun.state.record import Identity
from on_gpu.report import Report
from on_gpu.shapes import filled, tokens_of
from on_gpu.steps import step

IDENTITY = Identity("random", "mtp1", "benchmark", "benchmark", "bfloat16", "fast")
HEADROOM_TOKENS = 1024
LIMIT_BYTES = 1 << 36
FLUSH_S = 120.0


class Restores:
    """A conversation of random rows in a bank on disk and in one of RAM alone."""

    def __init__(self, report: Report, section: str, table: StepTable, folder: Path, num_tokens: int) -> None:
        self._report, self._section, self._table, self._folder = report, section, table, folder
        self._tokens = tokens_of(table.family, num_tokens)  # type: ignore[arg-type]
        self._files: list[Path] = []

    def run(self, repeats: int) -> None:
        part = self._report.part
        part(self._section, "keep_on_ssd", self._keep_on_ssd)
        for name, restore in (("restore_ssd", self._ssd), ("plain_read", self._plain_read)):
            part(self._section, name, lambda restore=restore: self._repeated(restore, repeats))
        ram = self._bank(disk=False)
        part(self._section, "restore_ram_live", lambda: self._ram(ram, repeats, give_back=True))
        part(self._section, "restore_ram_fork", lambda: self._ram(ram, repeats, give_back=False))

    def _keep_on_ssd(self) -> dict[str, Any]:
        """Seconds of capturing and of writing, and steps before and after the host has read the cache."""
        cache = self._filled()
        before = self._steps(cache)
        bank = self._bank(disk=True)
        bank.remember(cache, self._tokens, [cache.snapshot()], FinishedTurn("one", "", 1, 0, 1))
        start = time.perf_counter()
        while bank.capture_one():
            pass
        captured = time.perf_counter()
        is_safe = bank.flush(FLUSH_S)
        written = time.perf_counter()
        after = self._steps(cache)
        bank.close()
        self._files = sorted(p for p in (self._folder / "records").rglob("*") if p.is_file())
        sizes = {"gb": sum(p.stat().st_size for p in self._files) / 1e9, "is_safe": is_safe}
        return sizes | {"capture_s": captured - start, "write_s": written - captured, "steps_before": before, "steps_after": after}

    def _ssd(self) -> tuple[float, Cache[Any] | None]:
        bank = self._bank(disk=True)
        self._drop_page_cache()
        found = self._restored(bank, "ssd", None)
        bank.close()
        return found[0], found[1].cache

    def _plain_read(self) -> tuple[float, Cache[Any] | None]:
        self._drop_page_cache()
        start, buffer = time.perf_counter(), bytearray(1 << 22)
        for path in self._files:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        return time.perf_counter() - start, None

    def _repeated(self, restore: Any, repeats: int) -> dict[str, Any]:
        assert self._files, "nothing was stored"
        samples, steps = [], None
        for _ in range(repeats):
            taken, cache = restore()
            samples.append(taken)
            steps = self._steps(cache) if cache is not None else None
        size = sum(p.stat().st_size for p in self._files)
        return {"s": statistics.median(samples), "samples_s": samples, "gb_per_s": size / statistics.median(samples) / 1e9, "steps": steps}

    def _ram(self, bank: Bank, repeats: int, *, give_back: bool) -> dict[str, Any]:
        """From a live cache that is taken over, and remembered each time; or by a fork of it, for another session."""
        if give_back:
            cache = self._filled()
            bank.remember(cache, self._tokens, [cache.snapshot()], FinishedTurn("one", "", 1, 0, 1))
        samples, steps = [], None
        for _ in range(repeats):
            taken, restored = self._restored(bank, "ram", None if give_back else "another")
            samples.append(taken)
            steps = self._steps(restored.cache)
            if give_back:
                bank.remember(restored.cache, self._tokens, restored.snapshots, FinishedTurn(restored.session, "", 1, 0, 0))
        return {"s": statistics.median(samples), "samples_s": samples, "steps": steps}

    def _restored(self, bank: Bank, source: str, session: str | None) -> tuple[float, Any]:
        start = time.perf_counter()
        restored = bank.restore(self._tokens, tenant="", session=session, layout=Contiguous(), headroom_tokens=HEADROOM_TOKENS)
        mx.eval(restored.cache.arrays())
        mx.synchronize()
        taken = time.perf_counter() - start
        assert (restored.source, restored.reused_tokens) == (source, len(self._tokens)), restored.miss_reason.text
        return taken, restored

    def _steps(self, cache: Cache[Any]) -> dict[str, float]:
        """Milliseconds of the first step of one row, and of later ones. The cache is as before."""
        measured = step(self._table, cache, 1, repeats=5, warm=1)
        return {"first_ms": measured["first_ms"], "later_ms": measured["ms"]}

    def _filled(self) -> Cache[Any]:
        return filled(self._table.family, Contiguous(), len(self._tokens), HEADROOM_TOKENS)

    def _bank(self, *, disk: bool) -> Bank:
        tier = DiskTier(self._folder, limit_bytes=LIMIT_BYTES, daily_limit_bytes=1 << 62, index=hold(self._folder)) if disk else None
        key = secret(self._folder) if disk else b"benchmark"
        return Bank(self._table.family.spec, IDENTITY, disk=tier, secret=key, ram_limit_bytes=LIMIT_BYTES)

    def _drop_page_cache(self) -> None:
        for path in self._files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
