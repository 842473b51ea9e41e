"""How long does it take to restore a stored conversation? From disk with the page cache dropped, against a plain read; and from RAM.

    python benchmarks/restore.py [--tokens 12000] [--repeats 9] [--dry-run] [--out FILE]

A conversation of that length is prefilled into a bank once. Then, interleaved: a restore from disk by a bank that was just opened, a plain
read of the same files, and restores from RAM (taking the live cache over, and forking it). Each restore ends when every array is there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from forerun.config import Config, prepare

prepare(Config.model_validate({}))

import mlx.core as mx  # noqa: E402

from evidence import evidence, interleaved, ratio_interval, write  # noqa: E402
from forerun.bank.bank import Bank, FinishedTurn  # noqa: E402
from forerun.bank.tier.disk import DiskTier  # noqa: E402
from forerun.bank.tier.folder import hold, secret  # noqa: E402
from forerun.decode.prefill import prefill  # noqa: E402
from forerun.kernels import arithmetic  # noqa: E402
from forerun.models.load import DEMO_MODEL, LoadedModel, load  # noqa: E402
from forerun.state.layout import Contiguous  # noqa: E402
from forerun.state.record import Identity  # noqa: E402

HERE = arithmetic.here()
HEADROOM_TOKENS = 256


class Arms:
    """The conversation, and the ways to restore it; each returns seconds."""

    def __init__(self, loaded: LoadedModel, folder: Path, num_tokens: int) -> None:
        self.loaded, self.folder = loaded, folder
        self.tokens = [int(t) for t in mx.random.randint(0, 8000, (num_tokens,), key=mx.random.key(1)).tolist()]  # type: ignore[union-attr, arg-type]
        self.live = self._open(disk=False)
        self._prefill(self.live)
        bank = self._open(disk=True)
        self._prefill(bank)
        bank.flush(60)
        bank.close()
        self.files = sorted(p for p in (folder / "records").rglob("*") if p.is_file())

    def ssd(self) -> float:
        bank = self._open(disk=True)
        self._drop_page_cache()
        seconds = self._restore(bank, "ssd")
        bank.close()
        return seconds

    def plain_read(self) -> float:
        self._drop_page_cache()
        start = time.perf_counter()
        buffer = bytearray(1 << 22)
        for path in self.files:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        return time.perf_counter() - start

    def ram_live(self) -> float:
        return self._restore(self.live, "ram", stores_again=True)

    def ram_fork(self) -> float:
        return self._restore(self.live, "ram", session="another")

    def _restore(self, bank: Bank, source: str, *, session: str | None = None, stores_again: bool = False) -> float:
        start = time.perf_counter()
        restored = bank.restore(self.tokens, tenant="", session=session, layout=Contiguous(), headroom_tokens=HEADROOM_TOKENS)
        mx.eval(restored.cache.arrays())
        seconds = time.perf_counter() - start
        assert (restored.source, restored.reused_tokens) == (source, len(self.tokens)), restored
        if stores_again:
            bank.remember(restored.cache, self.tokens, restored.snapshots, FinishedTurn(restored.session, "", 1, 0, 0))
        return seconds

    def _prefill(self, bank: Bank) -> None:
        empty = bank.bypass("bypass", prompt_tokens=len(self.tokens), session=None, layout=Contiguous(), headroom_tokens=HEADROOM_TOKENS)
        for _ in prefill(self.loaded.family, empty.cache, self.tokens, ()):
            pass
        bank.remember(empty.cache, self.tokens, [empty.cache.snapshot()], FinishedTurn(empty.session, "", 1, 0, 1))

    def _open(self, *, disk: bool) -> Bank:
        identity = Identity(self.loaded.digest, self.loaded.mtp, "benchmark", "benchmark", HERE.dtype, HERE.numerics.name)
        tier = DiskTier(self.folder, limit_bytes=1 << 30, daily_limit_bytes=1 << 62, index=hold(self.folder)) if disk else None
        key = secret(self.folder) if disk else b"benchmark"
        return Bank(self.loaded.family.spec, identity, disk=tier, secret=key, ram_limit_bytes=1 << 30)

    def _drop_page_cache(self) -> None:
        for path in self.files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=12_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(
            f"would prefill {options.tokens} tokens once, then restore them {options.repeats} times in each of four ways ({HERE.kernels})"
        )
        return
    loaded = load(DEMO_MODEL, HERE.numerics, HERE.dtype, lambda doing, done_frac: None)
    with tempfile.TemporaryDirectory() as folder:
        arms = Arms(loaded, Path(folder), options.tokens)
        num_bytes = sum(p.stat().st_size for p in arms.files)
        variants = {"ssd": arms.ssd, "plain_read": arms.plain_read, "ram_live": arms.ram_live, "ram_fork": arms.ram_fork}
        samples = interleaved(variants, options.repeats)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratio = ratio_interval(samples["ssd"], samples["plain_read"])
    head = evidence(
        kernels=HERE.kernels,
        model_digest=loaded.digest,
        numerics=HERE.numerics.name,
        config={"tokens": options.tokens, "repeats": options.repeats},
    )
    write(options.out, head | {"file_bytes": num_bytes, "seconds": samples, "median_s": medians, "ssd_over_plain_read": ratio})
    print(f"{options.tokens} tokens, {num_bytes / 1e6:.1f} MB in {len(arms.files)} files")
    for name, seconds in medians.items():
        print(f"  {name:12s} {seconds * 1e3:7.1f} ms  {num_bytes / seconds / 1e6:8.0f} MB/s")
    print(f"  ssd / plain read: {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})")


if __name__ == "__main__":
    main()
