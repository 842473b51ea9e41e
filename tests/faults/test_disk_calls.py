"""The n-th call to the system or to SQLite fails, for every n: nothing else is lost, nothing half-written is served or left uncounted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.failing import Moment, failing
from tests.records import bytes_under, files_under, opened, path_of, record

from forerun.bank.tier.disk import DiskTier
from forerun.errors import BankError, BankFullError, DamagedRecordError

KEPT = record(tokens=[1])
DAMAGED = record(tokens=[2])
ORPHAN = record(tokens=[3])
LOST = record(tokens=[4])
NEW = record(tokens=[5], num_bytes=10_000)


pytestmark = pytest.mark.usefixtures("watched_calls")


def leave_as_after_a_crash(folder: Path) -> None:
    """A record, a damaged record, a file without a row, a row without a file, half a file."""
    tier = opened(folder)
    for given in (KEPT, DAMAGED, ORPHAN, LOST):
        tier.put(given)
    tier.index.remove([ORPHAN.info.key])
    tier.close()
    path_of(folder, LOST.info.key).unlink()
    path_of(folder, LOST.info.key).with_suffix(".tmp").write_bytes(b"half")
    damaged = bytearray(path_of(folder, DAMAGED.info.key).read_bytes())
    damaged[-1] ^= 1
    path_of(folder, DAMAGED.info.key).write_bytes(damaged)


def prepared(folder: Path) -> DiskTier:
    leave_as_after_a_crash(folder)
    return opened(folder)


def held(tier: DiskTier) -> set[str]:
    return {info.key for info in tier.index.inventory()}


def check(tier: DiskTier, folder: Path) -> None:
    """What must hold whatever failed before."""
    assert tier.num_bytes == bytes_under(folder)
    assert tier.get(KEPT.info.key) == KEPT
    for key in held(tier) - {DAMAGED.info.key}:
        try:
            assert tier.get(key).info.key == key
        except KeyError:
            assert key not in held(tier)
    assert tier.num_bytes == bytes_under(folder)


def put_new(tier: DiskTier) -> None:
    tier.put(NEW)
    assert tier.get(NEW.info.key) == NEW


def get_damaged(tier: DiskTier) -> None:
    with pytest.raises(DamagedRecordError):
        tier.get(DAMAGED.info.key)
    assert DAMAGED.info.key not in held(tier)
    assert tier.quarantined == 1


def delete_damaged(tier: DiskTier) -> None:
    tier.delete(DAMAGED.info.key)
    assert DAMAGED.info.key not in held(tier)


def clear_quarantine(tier: DiskTier) -> None:
    get_damaged(tier)
    tier.clear_quarantine()
    assert tier.quarantined == 0


OPERATIONS = (put_new, get_damaged, delete_damaged, clear_quarantine)


def open_and_close(folder: Path) -> None:
    opened(folder).close()


def calls_of(work: Callable[[], object]) -> range:
    """Numbers of the calls that the work makes."""
    with failing(-1, "before") as failure:
        work()
    assert len(failure.calls) > 2
    return range(len(failure.calls))


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
        tier = opened(folder)
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
        tier = opened(folder)
        check(tier, folder)
        assert ORPHAN.info.key in held(tier)
        tier.close()


def calls_of_put(folder: Path) -> list[str]:
    tier = prepared(folder)
    with failing(-1, "before") as failure:
        tier.put(NEW)
    tier.close()
    return failure.calls


def test_put_syncs_the_bytes_before_the_name_and_the_name_before_the_row(tmp_path: Path) -> None:
    calls = [name for name in calls_of_put(tmp_path) if name in ("mkdir", "write", "fsync", "replace") or name.startswith("sql INSERT")]
    assert [name.split()[0] for name in calls] == ["mkdir", "fsync", "write", "write", "fsync", "replace", "fsync", "sql"]


def test_a_put_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for at in range(len(calls_of_put(tmp_path / "model"))):
        folder = tmp_path / str(at)
        tier = prepared(folder)
        before = set(folder.rglob("*")) | {path_of(folder, NEW.info.key).parent}
        with failing(at, "before"), pytest.raises(BankError):
            tier.put(NEW)
        assert set(folder.rglob("*")) <= before
        tier.close()


def test_a_folder_that_a_power_cut_may_undo_is_not_left(tmp_path: Path) -> None:
    at = calls_of_put(tmp_path / "model").index("fsync")
    tier = prepared(tmp_path / "bank")
    with failing(at, "before"), pytest.raises(BankError):
        tier.put(NEW)
    assert not path_of(tmp_path / "bank", NEW.info.key).parent.exists()
    tier.close()


def test_what_cannot_be_cleared_away_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = calls_of_put(tmp_path / "model").index("replace")
    tier = prepared(tmp_path / "bank")
    with monkeypatch.context() as patch, failing(at, "before"):
        patch.setattr(os, "unlink", lambda *_: (_ for _ in ()).throw(PermissionError()))
        with pytest.raises(BankError):
            tier.put(NEW)
    assert path_of(tmp_path / "bank", NEW.info.key).with_suffix(".tmp").exists()
    check(tier, tmp_path / "bank")
    put_new(tier)
    check(tier, tmp_path / "bank")
    tier.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_nothing_stays(code: int, tmp_path: Path) -> None:
    at = calls_of_put(tmp_path / "model").index("write")
    tier = prepared(tmp_path / "bank")
    before = files_under(tmp_path / "bank")
    with failing(at, "before", code), pytest.raises(BankFullError) as caught:
        tier.put(NEW)
    assert caught.value.reason == "disk"
    assert files_under(tmp_path / "bank") == before
    check(tier, tmp_path / "bank")
    tier.close()
