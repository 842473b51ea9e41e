"""Records for tests of the bank: small, distinct, in a real chain; and the files of a bank's folder."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.waiting import LIMIT_S

from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold
from forerun.state.record import SEGMENT_TOKENS, Identity, Kind, PrefixHasher, Record

if TYPE_CHECKING:
    import pytest

IDENTITY = Identity("weights", "mtp", "tokenizer", "template", "float32", "1")
SECRET = bytes(range(32))
HASHER = PrefixHasher(SECRET, "", IDENTITY)


def record(kind: Kind = "segment", *, tokens: list[int] | None = None, num_bytes: int = 1000, before: list[int] | None = None) -> Record:
    """A record after the tokens `before` (whole blocks), with a payload derived from its tokens."""
    tokens, before = tokens if tokens is not None else [1, 2, 3], before or []
    assert len(before) % SEGMENT_TOKENS == 0
    parent = HASHER.nodes(before)[-1]
    payload = memoryview(random.Random(f"{kind}{tokens}{before}").randbytes(num_bytes))
    return Record.of(HASHER.info(kind, parent, len(before), tuple(tokens)), payload)


def opened(folder: Path, *, limit_bytes: int = 1 << 30, daily_limit_bytes: int = 1 << 30) -> DiskTier:
    """The tier in the folder, once rows and files agree; a failure releases the folder."""
    index = hold(folder)
    try:
        tier = DiskTier(folder, limit_bytes=limit_bytes, daily_limit_bytes=daily_limit_bytes, index=index)
        assert tier.wait_until_reconciled(LIMIT_S)
        return tier
    except BaseException:
        index.close()
        raise


class StuckDisk:
    """A disk that writes no record before `may_write` is set. num_written: how many it wrote, some only after a wait that ended in vain."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.num_written, put = threading.Event(), 0, DiskTier.put

        def stuck(tier: DiskTier, record: Record) -> None:
            self.may_write.wait(LIMIT_S)
            self.num_written += 1
            put(tier, record)

        monkeypatch.setattr(DiskTier, "put", stuck)


def path_of(folder: Path, key: str) -> Path:
    """The file of the record of that key."""
    return folder / "records" / key[:2] / key


def files_under(folder: Path) -> set[Path]:
    """Every file and link, however deep."""
    return {path for path in folder.rglob("*") if path.is_file() or path.is_symlink()}


def bytes_under(folder: Path) -> int:
    """Lengths of all files."""
    return sum(path.lstat().st_size for path in files_under(folder))
