"""Damaged record files: every byte flipped, every length cut, files swapped, versions and sizes that are not ours. None is served."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack_into

import pytest
from tests.records import bytes_under, opened, path_of, record
from xxhash import xxh3_64_intdigest

from forerun.bank.tier import format
from forerun.bank.tier.disk import DiskTier
from forerun.errors import BankError, DamagedRecordError
from forerun.state.record import Record

SMALL = record(tokens=[1, 2, 3], num_bytes=40)
WHOLE = b"".join(format.chunks(SMALL))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / SMALL.info.key


@pytest.fixture
def tier(tmp_path: Path) -> DiskTier:
    return opened(tmp_path / "bank")


def with_head_checksum(changed: bytearray) -> bytes:
    """The file with a head checksum that matches its content."""
    end = format.head_bytes(len(SMALL.info.tokens)) - 8
    pack_into("<Q", changed, end, xxh3_64_intdigest(changed[:end]))
    return bytes(changed)


def test_the_whole_file_is_read(path: Path) -> None:
    path.write_bytes(WHOLE)
    assert format.read(path) == SMALL
    assert format.read_info(path) == SMALL.info


def test_every_flipped_byte_is_refused(path: Path) -> None:
    path.write_bytes(WHOLE)
    with path.open("r+b") as file:
        for at, byte in enumerate(WHOLE):
            file.seek(at)
            file.write(bytes([byte ^ 0x40]))
            file.flush()
            with pytest.raises(DamagedRecordError):
                format.read(path)
            file.seek(at)
            file.write(bytes([byte]))
    assert format.read(path) == SMALL


def test_every_cut_is_refused(path: Path) -> None:
    path.write_bytes(WHOLE)
    with path.open("r+b") as file:
        for length in reversed(range(len(WHOLE))):
            file.truncate(length)
            with pytest.raises(DamagedRecordError):
                format.read(path)
            with pytest.raises(DamagedRecordError):
                format.read_info(path)


def test_a_longer_file_is_refused(path: Path) -> None:
    path.write_bytes(WHOLE + b"\0")
    with pytest.raises(DamagedRecordError, match="file bytes: expected 4136, found 4137"):
        format.read(path)


@pytest.mark.parametrize(
    ("at", "form", "value", "message"),
    [
        (8, "<I", 1, "format version: expected 2, found 1"),
        (12, "<I", 3, "kind 3"),
        (64, "<Q", 1, "start 1"),
        (72, "<I", 1025, "at most 1024 tokens, found 1025"),
        (72, "<I", 2**32 - 1, "at most 1024 tokens"),
        (76, "<I", 1, "reserved 1"),
        (80, "<Q", 2**50, f"file bytes: expected {4096 + 2**50}, found 4136"),
        (88, "<Q", 1, "payload checksum: expected 1"),
    ],
)
def test_a_head_that_lies_with_a_right_checksum_is_refused(path: Path, at: int, form: str, value: int, message: str) -> None:
    changed = bytearray(WHOLE)
    pack_into(form, changed, at, value)
    path.write_bytes(with_head_checksum(changed))
    with pytest.raises(DamagedRecordError, match=message):
        format.read(path)


def test_damage_is_set_aside_counted_and_gone(tier: DiskTier, tmp_path: Path) -> None:
    folder, other = tmp_path / "bank", record(tokens=[9])
    tier.put(SMALL)
    tier.put(other)
    path_of(folder, SMALL.info.key).write_bytes(WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]))
    with pytest.raises(DamagedRecordError, match="payload checksum"):
        tier.get_many([other.info.key, SMALL.info.key])
    assert tier.quarantined == 1
    assert (folder / "quarantine" / SMALL.info.key).exists()
    assert tier.index.inventory() == [other.info]
    with pytest.raises(KeyError):
        tier.get(SMALL.info.key)
    assert tier.num_bytes == bytes_under(folder)
    tier.put(SMALL)
    assert tier.get(SMALL.info.key) == SMALL
    tier.close()


def test_swapped_files_are_refused(tier: DiskTier, tmp_path: Path) -> None:
    one, two = record(tokens=[1]), record(tokens=[2])
    tier.put(one)
    tier.put(two)
    first, second = path_of(tmp_path / "bank", one.info.key), path_of(tmp_path / "bank", two.info.key)
    first.write_bytes(second.read_bytes())
    with pytest.raises(DamagedRecordError, match=f"expected segment {one.info.key}.*found segment {two.info.key}"):
        tier.get(one.info.key)
    assert tier.get(two.info.key) == two
    tier.close()


@pytest.mark.parametrize("content", [b"", WHOLE[:4095], WHOLE[:4100], b"\0" * 5000, WHOLE])
def test_a_foreign_file_is_set_aside_at_opening(content: bytes, tier: DiskTier, tmp_path: Path) -> None:
    tier.put(SMALL)
    tier.close()
    name = "ab" * 16
    path_of(tmp_path / "bank", name).parent.mkdir()
    path_of(tmp_path / "bank", name).write_bytes(content)
    again = opened(tmp_path / "bank")
    assert again.index.inventory() == [SMALL.info]
    assert again.quarantined == 1
    assert again.num_bytes == bytes_under(tmp_path / "bank")
    again.close()


def test_a_damaged_index_serves_nothing_wrong(tmp_path: Path) -> None:
    stored = {given.info.key: given for given in (record(tokens=list(range(i, i + 300))) for i in range(8))}
    tier = opened(tmp_path)
    for given in stored.values():
        tier.put(given)
    tier.close()
    whole = (tmp_path / "index.db").read_bytes()
    served = 0
    for seed in range(60):
        changed = bytearray(whole)
        changed[random.Random(seed).randrange(len(whole))] ^= 0x21
        (tmp_path / "index.db").write_bytes(changed)
        for key, found in served_by(tmp_path):
            assert found == stored[key]
            served += 1
        (tmp_path / "index.db").write_bytes(whole)
        for given in stored.values():
            path_of(tmp_path, given.info.key).write_bytes(b"".join(format.chunks(given)))
    assert served > 300


@pytest.mark.long
@pytest.mark.usefixtures("watched_calls")
def test_every_byte_of_every_record_of_a_store_may_be_wrong(tmp_path: Path) -> None:
    stored = [
        record("snapshot", tokens=[7], num_bytes=0),
        record(tokens=[1, 2], num_bytes=9),
        record(tokens=list(range(900)), num_bytes=500),
    ]
    tier = opened(tmp_path)
    for given in stored:
        tier.put(given)
    for given in stored:
        path = path_of(tmp_path, given.info.key)
        whole = path.read_bytes()
        for at, byte in enumerate(whole):
            path.write_bytes(whole[:at] + bytes([byte ^ 1]) + whole[at + 1 :])
            with pytest.raises(DamagedRecordError):
                tier.get(given.info.key)
            tier.put(given)
        assert all(tier.get(each.key) == each for each in stored)
    assert tier.num_bytes == bytes_under(tmp_path)
    tier.close()


@pytest.mark.long
@pytest.mark.usefixtures("watched_calls")
def test_any_byte_of_the_index_may_be_wrong(tmp_path: Path) -> None:
    """Every seventh that is not zero, and some of the others."""
    stored = {given.info.key: given for given in (record(tokens=list(range(i, i + 300))) for i in range(3))}
    tier = opened(tmp_path)
    for given in stored.values():
        tier.put(given)
    tier.close()
    whole, files = (tmp_path / "index.db").read_bytes(), {key: path_of(tmp_path, key).read_bytes() for key in stored}
    for at in [at for at, byte in enumerate(whole) if at % (7 if byte else 211) == 0]:
        (tmp_path / "index.db").write_bytes(whole[:at] + bytes([whole[at] ^ 0x21]) + whole[at + 1 :])
        assert all(found == stored[key] for key, found in served_by(tmp_path))
        for key, content in files.items():
            path_of(tmp_path, key).write_bytes(content)


def served_by(folder: Path) -> Iterator[tuple[str, Record]]:
    """All that a tier in the folder hands out."""
    with suppress(BankError):
        tier = opened(folder)
        try:
            for info in tier.index.inventory():
                with suppress(BankError, KeyError):
                    yield info.key, tier.get(info.key)
        finally:
            tier.close()
