"""The n-th call to the system or to SQLite fails, for every n: nothing else is lost, nothing half-written is served or left uncounted."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.faults.failing import Connection, Moment, failing
from tests.records import record

from forerun.bank.disk import DiskTier
from forerun.bank.index import Index
from forerun.errors import BankError, BankFullError, DamagedRecordError
from forerun.state.record import Record

KEPT = record(tokens=[1])
DAMAGED = record(tokens=[2])
ORPHAN = record(tokens=[3])
LOST = record(tokens=[4])
NEW = record(tokens=[5], num_bytes=10_000)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the calls count here, not the power cut


def open_tier(folder: Path) -> DiskTier:
    index = Index.hold(folder)
    try:
        return DiskTier(folder, limit_bytes=1 << 30, index=index)
    except BaseException:
        index.close()
        raise


def path_of(folder: Path, given: Record) -> Path:
    return folder / "records" / given.key[:2] / given.key


def leave_as_after_a_crash(folder: Path) -> None:
    """A record, a damaged record, a file without a row, a row without a file, half a file."""
    tier = open_tier(folder)
    for given in (KEPT, DAMAGED, ORPHAN, LOST):
        tier.put(given)
    tier.index.remove([ORPHAN.key])
    tier.close()
    path_of(folder, LOST).unlink()
    path_of(folder, LOST).with_suffix(".tmp").write_bytes(b"half")
    damaged = bytearray(path_of(folder, DAMAGED).read_bytes())
    damaged[-1] ^= 1
    path_of(folder, DAMAGED).write_bytes(damaged)


def prepared(folder: Path) -> DiskTier:
    leave_as_after_a_crash(folder)
    return open_tier(folder)


def bytes_under(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def held(tier: DiskTier) -> set[str]:
    return {info.key for info in tier.inventory()}


def check(tier: DiskTier, folder: Path) -> None:
    """What must hold whatever failed before."""
    assert tier.num_bytes == bytes_under(folder)
    assert tier.get(KEPT.key) == KEPT
    for key in held(tier) - {DAMAGED.key}:
        try:
            assert tier.get(key).key == key
        except KeyError:
            assert key not in held(tier)
    assert tier.num_bytes == bytes_under(folder)


def put_new(tier: DiskTier) -> None:
    tier.put(NEW)
    assert tier.get(NEW.key) == NEW


def get_damaged(tier: DiskTier) -> None:
    with pytest.raises(DamagedRecordError):
        tier.get(DAMAGED.key)
    assert DAMAGED.key not in held(tier)
    assert tier.quarantined == 1


def delete_damaged(tier: DiskTier) -> None:
    tier.delete(DAMAGED.key)
    assert DAMAGED.key not in held(tier)


def clear_quarantine(tier: DiskTier) -> None:
    get_damaged(tier)
    tier.clear_quarantine()
    assert tier.quarantined == 0


OPERATIONS = (put_new, get_damaged, delete_damaged, clear_quarantine)


def open_and_close(folder: Path) -> None:
    open_tier(folder).close()


def calls_of(work: Callable[[], object]) -> list[int]:
    """Numbers of the calls that the work makes; of a row of mkdir the first stands for all."""
    with failing(-1, "before") as failure:
        work()
    calls = failure.calls
    assert len(calls) > 2
    return [i for i, name in enumerate(calls) if not name == calls[i - 1] == "mkdir"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call_of_an_operation_may_fail(operation: Callable[[DiskTier], None], moment: Moment, tmp_path: Path) -> None:
    model = prepared(tmp_path / "model")
    for at in calls_of(lambda: operation(model)):
        folder = tmp_path / str(at)
        tier = prepared(folder)
        with failing(at, moment), suppress(BankError, KeyError):
            operation(tier)
        check(tier, folder)
        tier.close()
        tier = open_tier(folder)
        check(tier, folder)
        put_new(tier)
        tier.close()
    model.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_every_call_of_opening_may_fail(moment: Moment, tmp_path: Path) -> None:
    leave_as_after_a_crash(tmp_path / "model")
    for at in calls_of(lambda: open_and_close(tmp_path / "model")):
        folder = tmp_path / str(at)
        leave_as_after_a_crash(folder)
        with failing(at, moment), suppress(BankError):
            open_and_close(folder)
        tier = open_tier(folder)
        check(tier, folder)
        assert ORPHAN.key in held(tier)
        tier.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_nothing_stays(code: int, tmp_path: Path) -> None:
    model = prepared(tmp_path / "model")
    with failing(-1, "before") as failure:
        put_new(model)
    model.close()
    tier = prepared(tmp_path / "bank")
    before = set((tmp_path / "bank").rglob("*"))
    with failing(failure.calls.index("write"), "before", code), pytest.raises(BankFullError) as caught:
        tier.put(NEW)
    assert caught.value.reason == "disk"
    assert set((tmp_path / "bank").rglob("*")) == before
    check(tier, tmp_path / "bank")
    tier.close()
