"""The record file is as documented in docs/record-format.md, byte by byte."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records import HASHER, record
from xxhash import xxh3_64_intdigest

from forerun.bank.tier import format
from forerun.state.record import SEGMENT_TOKENS, Record

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=SEGMENT_TOKENS)


def test_every_field_is_at_the_documented_offset() -> None:
    block = list(range(SEGMENT_TOKENS))
    stored = record("snapshot", tokens=[7, 2**32 - 1], before=block, num_bytes=5)
    head, payload = format.chunks(stored)
    assert head[0:8] == b"FORERUN\n"
    assert unpack_from("<II", head, 8) == (2, 2)
    assert [head[at : at + 16].hex() for at in (16, 32, 48)] == [stored.info.key, HASHER.root, stored.info.parent]
    assert unpack_from("<QII", head, 64) == (SEGMENT_TOKENS, 2, 0)
    assert unpack_from("<QQ", head, 80) == (5, xxh3_64_intdigest(stored.payload))
    assert unpack_from("<II", head, 96) == (7, 2**32 - 1)
    assert head[104:4088] == bytes(4088 - 104)
    assert unpack_from("<Q", head, 4088) == (xxh3_64_intdigest(head[:4088]),)
    assert len(head) == 4096
    assert payload == stored.payload


@pytest.mark.parametrize(("num_tokens", "num_bytes"), [(0, 4096), (998, 4096), (999, 8192), (SEGMENT_TOKENS, 8192)])
def test_payload_begins_on_a_page(num_tokens: int, num_bytes: int) -> None:
    assert format.head_bytes(num_tokens) == num_bytes
    assert len(format.chunks(record(tokens=list(range(num_tokens))))[0]) == num_bytes


@settings(max_examples=50, deadline=None)
@given(tokens=TOKENS, num_bytes=st.integers(0, 9000), kind=st.sampled_from(["segment", "snapshot"]))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, tokens: list[int], num_bytes: int, kind: format.Kind) -> None:
    stored = record(kind, tokens=tokens, num_bytes=num_bytes)
    path = tmp_path_factory.getbasetemp() / "record"
    path.write_bytes(b"".join(format.chunks(stored)))
    assert format.read(path) == stored
    assert format.read_info(path) == stored.info
    assert path.stat().st_size == format.file_bytes(stored.info)


def test_a_payload_of_any_item_size_is_its_bytes(tmp_path: Path) -> None:
    floats = memoryview(random.Random(0).randbytes(64)).cast("f")
    stored = Record.of(record().info, floats)
    (tmp_path / "record").write_bytes(b"".join(format.chunks(stored)))
    assert format.read(tmp_path / "record").payload == floats.cast("B")


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": tuple(range(SEGMENT_TOKENS + 1))},
        {"key": "../../etc"},
        {"key": "ab"},
        {"root": ""},
        {"parent": "zz" * 16},
    ],
    ids=["tokens", "path", "short", "root", "parent"],
)
def test_an_invalid_record_is_not_written(wrong: dict[str, Any]) -> None:
    given = record()
    with pytest.raises(ValueError, match=r"no record|hexadecimal"):
        format.chunks(replace(given, info=replace(given.info, **wrong)))
