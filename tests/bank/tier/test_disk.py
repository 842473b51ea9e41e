"""The folder of the disk tier: its modes, quota, one writer, byte count, and repairs when it is opened."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.records import IDENTITY, bytes_under, files_under, opened, path_of, record
from tests.waiting import LIMIT_S

from forerun.bank.eviction import EvictingDisk
from forerun.bank.protection import Protections
from forerun.bank.tier import database, disk, files, reconcile
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, secret, view
from forerun.bank.tier.index import RecordLabel
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.errors import BankError, BankFullError, BankGoneError, BankLockedError, DamagedRecordError
from forerun.state.record import PrefixHasher

ONE, TWO = record(tokens=[1]), record(tokens=[2])


def viewed(folder: Path) -> DiskTier:
    return DiskTier(folder, limit_bytes=0, daily_limit_bytes=1 << 62, index=view(folder))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_records_survive_closing(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    tier.close()
    tier = opened(tmp_path)
    assert tier.get(ONE.info.key) == ONE
    tier.close()


def test_a_record_is_written_once(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    before = path_of(tmp_path, ONE.info.key).stat()
    tier.put(ONE)
    assert path_of(tmp_path, ONE.info.key).stat() == before
    tier.close()


def test_all_is_private(tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir(0o755)
    tier = opened(tmp_path / "bank")
    tier.put(ONE)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "bank", *(tmp_path / "bank").rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    tier.close()


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    with pytest.raises(BankLockedError, match="belongs to another running server"):
        opened(tmp_path)
    tier.close()
    opened(tmp_path).close()


def test_a_view_works_beside_the_writer_and_changes_nothing(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    tier.put(TWO)
    damage(path_of(tmp_path, TWO.info.key))
    beside = viewed(tmp_path)
    before = files_under(tmp_path)
    assert beside.get(ONE.info.key) == ONE
    with pytest.raises(DamagedRecordError):
        beside.get(TWO.info.key)
    for change in (lambda: beside.put(record()), lambda: beside.delete(ONE.info.key), beside.clear_quarantine):
        with pytest.raises(BankError, match="read-only"):
            change()
    path_of(tmp_path, ONE.info.key).unlink()
    with pytest.raises(KeyError):
        beside.get(ONE.info.key)
    assert {info.key for info in beside.index.inventory()} == {ONE.info.key, TWO.info.key}
    assert files_under(tmp_path) == before - {path_of(tmp_path, ONE.info.key)}
    assert beside.quarantined == 0
    beside.close()
    tier.close()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "letter.tmp").write_text("mine")
    with pytest.raises(BankError, match="holds something else"):
        opened(tmp_path)
    assert files_under(tmp_path) == {tmp_path / "letter.tmp"}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_view_of_nothing_is_an_error_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="no conversations are stored"):
        viewed(tmp_path)
    assert not files_under(tmp_path)


def test_a_view_works_without_a_writer(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    tier.close()
    beside = viewed(tmp_path)
    assert beside.get(ONE.info.key) == ONE
    assert beside.num_bytes == bytes_under(tmp_path)
    beside.close()


def test_the_quota_counts_all_files_and_is_not_exceeded(tmp_path: Path) -> None:
    limit_bytes = INDEX_SLACK_BYTES + 4_000_000
    tier = opened(tmp_path, limit_bytes=limit_bytes)
    records = [record(tokens=[i], num_bytes=200_000) for i in range(20)]
    with pytest.raises(BankFullError, match=f"of {limit_bytes} are used") as caught:
        list(map(tier.put, records))
    assert caught.value.reason == "quota"
    kept = len(tier.index.inventory())
    assert kept > 5
    assert tier.num_bytes == bytes_under(tmp_path) <= limit_bytes
    for given in records[:2]:  # a removal frees a record's bytes, less those by which the index's log grows
        tier.delete(given.info.key)
    tier.put(records[kept])
    tier.close()


def test_a_record_larger_than_the_quota_is_named_as_such(tmp_path: Path) -> None:
    tier = opened(tmp_path, limit_bytes=INDEX_SLACK_BYTES + 100_000)
    with pytest.raises(BankFullError, match="do not fit into") as caught:
        tier.put(record(num_bytes=100_000))
    assert caught.value.reason == "size"
    tier.close()


def test_every_file_is_counted(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.close()
    (tmp_path / "records" / "notes.txt").write_bytes(b"x" * 1000)
    (tmp_path / "quarantine" / ("cd" * 16)).write_bytes(b"x" * 2000)
    tier = opened(tmp_path)
    tier.put(ONE)
    assert tier.num_bytes == bytes_under(tmp_path) > 3000
    assert tier.quarantined == 1
    tier.clear_quarantine()
    assert tier.quarantined == 0
    assert tier.num_bytes == bytes_under(tmp_path)
    assert (tmp_path / "records" / "notes.txt").exists()
    tier.close()


def test_opening_makes_rows_and_files_agree(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    for given in (ONE, TWO):
        tier.put(given)
    tier.index.remove([ONE.info.key])
    tier.close()
    path_of(tmp_path, TWO.info.key).unlink()
    path_of(tmp_path, TWO.info.key).with_suffix(".tmp").write_bytes(b"half")
    (tmp_path / "secret.tmp").write_bytes(b"half")
    tier = opened(tmp_path)
    assert tier.index.inventory() == [ONE.info]
    assert tier.get(ONE.info.key) == ONE
    assert not list(tmp_path.rglob("*.tmp"))
    tier.close()


def test_a_lost_index_is_rebuilt(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    for given in (ONE, TWO):
        tier.put(given)
    tier.close()
    (tmp_path / "index.db").unlink()
    tier = opened(tmp_path)
    assert {info.key: info for info in tier.index.inventory()} == {ONE.info.key: ONE.info, TWO.info.key: TWO.info}
    tier.close()


def test_a_file_that_was_removed_is_a_miss(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    path_of(tmp_path, ONE.info.key).unlink()
    with pytest.raises(KeyError):
        tier.get(ONE.info.key)
    assert tier.index.inventory() == []
    tier.put(ONE)
    assert tier.get(ONE.info.key) == ONE
    tier.close()


def a_link(path: Path) -> None:
    path.symlink_to(path.parents[3] / "elsewhere")


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "within").write_bytes(b"x" * 500)


@pytest.mark.parametrize("taking_the_place", [a_link, a_folder, os.mkfifo])
def test_what_replaces_a_record_and_is_no_file_is_set_aside(taking_the_place: Callable[[Path], None], tmp_path: Path) -> None:
    tier = opened(tmp_path / "bank")
    for given in (ONE, TWO):
        tier.put(given)
        path = path_of(tmp_path / "bank", given.info.key)
        path.rename(tmp_path / "elsewhere")
        taking_the_place(path)
    with pytest.raises(DamagedRecordError, match="is not a regular file"):
        tier.get(ONE.info.key)
    assert tier.quarantined == 1
    tier.put(ONE)
    assert tier.get(ONE.info.key) == ONE
    tier.delete(TWO.info.key)
    assert not path_of(tmp_path / "bank", TWO.info.key).is_symlink()
    assert tier.num_bytes == bytes_under(tmp_path / "bank")
    tier.clear_quarantine()
    assert (tier.quarantined, tier.index.inventory()) == (0, [ONE.info])
    tier.close()


@pytest.mark.parametrize("taking_the_place", [a_link, a_folder, os.mkfifo])
def test_what_is_no_file_is_set_aside_at_opening(taking_the_place: Callable[[Path], None], tmp_path: Path) -> None:
    tier = opened(tmp_path / "bank")
    tier.put(ONE)
    tier.close()
    for name in (TWO.info.key, f"{ONE.info.key}.tmp"):
        path_of(tmp_path / "bank", name).parent.mkdir(exist_ok=True)
        taking_the_place(path_of(tmp_path / "bank", name))
    tier = opened(tmp_path / "bank")
    assert (tier.quarantined, tier.index.inventory()) == (1, [ONE.info])
    assert not list((tmp_path / "bank").rglob("*.tmp"))
    tier.put(TWO)
    assert tier.get(TWO.info.key) == TWO
    tier.close()


def test_the_secret_is_made_once(tmp_path: Path) -> None:
    opened(tmp_path / "one").close()
    opened(tmp_path / "two").close()
    made = secret(tmp_path / "one")
    assert len(made) == 32
    assert made != secret(tmp_path / "two")
    opened(tmp_path / "one").close()
    assert secret(tmp_path / "one") == made


def test_a_damaged_secret_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(BankError, match="expected 32 bytes, found 5"):
        secret(tmp_path)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(bytes(32))], ids=["lost", "another"])
def test_another_secret_than_what_is_stored_was_named_with_is_an_error(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    tier = opened(tmp_path)
    hasher = PrefixHasher(secret(tmp_path), "me", IDENTITY)
    tier.index.note_identity(hasher.root, "me", hasher.identity.fields, 1.0)
    tier.close()
    opened(tmp_path).close()
    spoil(tmp_path / "secret")
    with pytest.raises(BankError, match="is not the secret with which"):
        opened(tmp_path)


def test_opening_opens_no_record_that_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    tier.close()
    met: list[str] = []
    monkeypatch.setattr(os, "open", lambda path, *rest, call=os.open: met.append(Path(path).name) or call(path, *rest))
    opened(tmp_path).close()
    assert "index.db" in met
    assert ONE.info.key not in met


def test_opening_lists_and_measures_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = opened(tmp_path)
    for i in range(20):
        tier.put(record(tokens=[i]))
    tier.close()
    met: list[Path] = []
    monkeypatch.setattr(reconcile, "step", lambda folder, *_: met.append(folder) or [])
    monkeypatch.setattr(files, "size", lambda path, call=files.size: met.append(path) or call(path))
    tier = opened(tmp_path)
    assert len(met) == len(set(met)) + met.count(tmp_path / "lock") - 1 < 300  # each folder once, in the background, and a few other files
    assert not [path for path in met if len(path.name) == 32]
    assert tier.num_bytes == bytes_under(tmp_path)
    tier.close()


def test_what_a_crash_left_is_repaired_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    tier.index.remove([ONE.info.key])
    tier.close()
    may_go, step = threading.Event(), reconcile.step
    monkeypatch.setattr(reconcile, "step", lambda *given: (may_go.wait(LIMIT_S), step(*given))[1])
    tier = DiskTier(tmp_path, limit_bytes=1 << 30, daily_limit_bytes=1 << 30, index=hold(tmp_path))
    assert not tier.wait_until_reconciled(0.01)
    assert tier.index.inventory() == []
    may_go.set()
    assert tier.wait_until_reconciled(LIMIT_S)
    assert tier.get(ONE.info.key) == ONE
    assert tier.num_bytes == bytes_under(tmp_path)
    tier.close()


def test_closing_twice_closes_nothing_else(tmp_path: Path) -> None:
    tier = opened(tmp_path / "bank")
    tier.close()
    (tmp_path / "other").write_text("x")
    with (tmp_path / "other").open() as others:  # may have the number that the lock had
        tier.index.close()
        assert others.read() == "x"


def test_enough_written_today_stops_writing_until_tomorrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "today", lambda: "2999-01-01")
    tier = opened(tmp_path, daily_limit_bytes=20_000)
    tier.put(ONE)
    path_bytes = path_of(tmp_path, ONE.info.key).stat().st_size
    assert tier.written_today_bytes == path_bytes
    tier.delete(ONE.info.key)
    tier.close()
    tier = opened(tmp_path, daily_limit_bytes=20_000)
    assert tier.written_today_bytes == path_bytes  # restarts and removals do not give anything back
    records = [record(tokens=[i]) for i in range(10)]
    with pytest.raises(BankFullError, match="of 20000 were today") as caught:
        list(map(tier.put, records))
    assert caught.value.reason == "daily write budget"
    assert len(tier.index.inventory()) == 20_000 // path_bytes - 1
    monkeypatch.setattr(disk, "today", lambda: "2999-01-02")
    assert tier.written_today_bytes == 0
    tier.put(TWO)
    assert tier.written_today_bytes == path_bytes
    tier.close()


def test_a_folder_that_is_removed_meanwhile_is_named(tmp_path: Path) -> None:
    tier = opened(tmp_path / "bank")
    tier.put(ONE)
    shutil.rmtree(tmp_path / "bank")
    for work in (lambda: tier.put(TWO), lambda: tier.get(ONE.info.key)):
        with pytest.raises(BankGoneError, match="was removed while the server runs"):
            work()
    tier.close()
    tier = opened(tmp_path / "bank")
    tier.put(TWO)
    assert tier.get(TWO.info.key) == TWO
    tier.close()


def leave_in_an_earlier_format(folder: Path) -> None:
    tier = opened(folder)
    tier.put(ONE)
    tier.close()
    with closing(sqlite3.connect(folder / "index.db")) as connection:
        connection.executescript("DROP TABLE session; PRAGMA user_version = 6;")


def test_records_of_an_earlier_format_are_set_aside_named_and_counted_until_they_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_in_an_earlier_format(tmp_path)
    with pytest.raises(BankError, match=f"has format 6, this version of forerun reads format {database.VERSION}") as caught:
        viewed(tmp_path)
    assert "start the server" in caught.value.hint
    tier, aside = opened(tmp_path), tmp_path / "quarantine" / "format-6"
    (warning,) = caplog.records
    assert str(aside) in warning.message
    assert "forerun bank wipe" in warning.message
    assert (tier.index.inventory(), tier.quarantined) == ([], 1)
    assert path_of(aside.parent, ONE.info.key).relative_to(aside.parent / "records") in {p.relative_to(aside) for p in files_under(aside)}
    assert tier.num_bytes == bytes_under(tmp_path) > aside.stat().st_size
    tier.put(ONE)
    assert tier.get(ONE.info.key) == ONE
    tier.close()
    tier = opened(tmp_path)
    assert len(caplog.records) == 1
    assert tier.get(ONE.info.key) == ONE
    tier.clear_quarantine()
    assert not aside.exists()
    assert tier.num_bytes == bytes_under(tmp_path)
    tier.close()


def test_setting_an_earlier_format_aside_may_be_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_in_an_earlier_format(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(database, "_created", lambda path: (_ for _ in ()).throw(OSError("broken off")))
        with pytest.raises(BankError, match="broken off"):
            opened(tmp_path)
    tier = opened(tmp_path)
    assert [path.name for path in files_under(tmp_path / "quarantine" / "format-6")] == [ONE.info.key]
    assert tier.num_bytes == bytes_under(tmp_path)
    tier.close()


def test_a_quota_that_is_reached_removes_an_earlier_format_first(tmp_path: Path) -> None:
    leave_in_an_earlier_format(tmp_path)
    tier = opened(tmp_path)
    tier.put(TWO)
    tier.limit_bytes = tier.num_bytes + INDEX_SLACK_BYTES
    three = record(tokens=[3])
    EvictingDisk(tier, lambda: (), Protections()).put(three, RecordLabel("", "", 1.0, 1.0))
    assert tier.index.present([TWO.info.key, three.info.key]) == {TWO.info.key, three.info.key}
    assert tier.quarantined == 0
    tier.close()
