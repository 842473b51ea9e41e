"""The folder of the disk tier: its modes, its quota, its one writer, what it counts and what it mends when it is opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.records import bytes_under, files_under, opened, path_of, record

from forerun.bank.disk import INDEX_SLACK_BYTES, DiskTier, secret
from forerun.bank.index import Index
from forerun.errors import BankError, BankFullError, BankLockedError, DamagedRecordError

ONE, TWO = record(tokens=[1]), record(tokens=[2])


def view(folder: Path) -> DiskTier:
    return DiskTier(folder, limit_bytes=0, index=Index.view(folder))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_records_survive_closing(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    tier.close()
    tier = opened(tmp_path)
    assert tier.get(ONE.key) == ONE
    tier.close()


def test_a_record_is_written_once(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    before = path_of(tmp_path, ONE.key).stat()
    tier.put(ONE)
    assert path_of(tmp_path, ONE.key).stat() == before
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
    damage(path_of(tmp_path, TWO.key))
    beside = view(tmp_path)
    before = files_under(tmp_path)
    assert beside.get(ONE.key) == ONE
    with pytest.raises(DamagedRecordError):
        beside.get(TWO.key)
    for change in (lambda: beside.put(record()), lambda: beside.delete(ONE.key), beside.clear_quarantine):
        with pytest.raises(BankError, match="looking only"):
            change()
    path_of(tmp_path, ONE.key).unlink()
    with pytest.raises(KeyError):
        beside.get(ONE.key)
    assert {info.key for info in beside.inventory()} == {ONE.key, TWO.key}
    assert files_under(tmp_path) == before - {path_of(tmp_path, ONE.key)}
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
        view(tmp_path)
    assert not files_under(tmp_path)


def test_a_view_works_without_a_writer(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    tier.close()
    beside = view(tmp_path)
    assert beside.get(ONE.key) == ONE
    assert beside.num_bytes == bytes_under(tmp_path)
    beside.close()


def test_the_quota_counts_all_and_is_kept(tmp_path: Path) -> None:
    limit_bytes = INDEX_SLACK_BYTES + 1_000_000
    tier = opened(tmp_path, limit_bytes=limit_bytes)
    records = [record(tokens=[i], num_bytes=50_000) for i in range(20)]
    with pytest.raises(BankFullError, match=f"of {limit_bytes} are used") as caught:
        list(map(tier.put, records))
    assert caught.value.reason == "quota"
    kept = len(list(tier.inventory()))
    assert kept > 5
    assert tier.num_bytes == bytes_under(tmp_path) <= limit_bytes
    tier.delete(records[0].key)
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
    tier.index.remove([ONE.key])
    tier.close()
    path_of(tmp_path, TWO.key).unlink()
    path_of(tmp_path, TWO.key).with_suffix(".tmp").write_bytes(b"half")
    (tmp_path / "secret.tmp").write_bytes(b"half")
    tier = opened(tmp_path)
    assert list(tier.inventory()) == [ONE.info]
    assert tier.get(ONE.key) == ONE
    assert not list(tmp_path.rglob("*.tmp"))
    tier.close()


def test_a_lost_index_is_built_anew(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    for given in (ONE, TWO):
        tier.put(given)
    tier.close()
    (tmp_path / "index.db").unlink()
    tier = opened(tmp_path)
    assert {info.key: info for info in tier.inventory()} == {ONE.key: ONE.info, TWO.key: TWO.info}
    tier.close()


def test_a_file_that_was_removed_is_a_miss(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    path_of(tmp_path, ONE.key).unlink()
    with pytest.raises(KeyError):
        tier.get(ONE.key)
    assert list(tier.inventory()) == []
    tier.put(ONE)
    assert tier.get(ONE.key) == ONE
    tier.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    path = path_of(tmp_path, ONE.key)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BankError, match="symbolic link"):
        tier.get(ONE.key)
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


def test_opening_opens_no_record_that_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = opened(tmp_path)
    tier.put(ONE)
    tier.close()
    met: list[str] = []
    monkeypatch.setattr(os, "open", lambda path, *rest, call=os.open: met.append(Path(path).name) or call(path, *rest))
    opened(tmp_path).close()
    assert "index.db" in met
    assert ONE.key not in met
