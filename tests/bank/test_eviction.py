"""Eviction when the disk's quota is reached: never what is pinned, and what a live conversation needs last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.records import opened, record
from tests.waiting import LIMIT_S

from forerun.bank import policy
from forerun.bank.eviction import EvictingDisk
from forerun.bank.protection import Protections
from forerun.bank.stored import usable
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import RecordLabel
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.bank.writer import WriteJob, Writer

RECORD_BYTES, INDEX_BYTES = 200_000, 1_500_000
CAPACITY = 8  # records


@pytest.fixture
def live() -> list[Session]:
    return []


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    tier = opened(tmp_path / "bank", limit_bytes=INDEX_SLACK_BYTES + INDEX_BYTES + CAPACITY * RECORD_BYTES)
    yield tier
    tier.close()


@pytest.fixture
def writer(tier: DiskTier, live: list[Session]) -> Iterator[Writer]:
    writer = Writer(EvictingDisk(tier, lambda: live, Protections()))
    yield writer
    writer.close()


def write(writer: Writer, name: str, *tokens: int, rank_s: float) -> Session:
    """A conversation of these tokens: its segment, and snapshots at its first token and at its end."""
    own = [record("segment", tokens=[*tokens], num_bytes=RECORD_BYTES)]
    own += [record("snapshot", tokens=[*tokens[:stop]], num_bytes=1000) for stop in sorted({1, len(tokens)})]
    for each in own:
        writer.put(each, RecordLabel(name, "", rank_s, rank_s))
    session = Session("", name, "", rank_s, 1, len(tokens), False, tuple(each.info.key for each in own))
    writer.note(session)
    assert writer.flush(LIMIT_S)
    return session


def test_flush_waits_for_what_is_queued_and_not_for_what_comes_meanwhile(writer: Writer) -> None:
    done: list[str] = []

    def endless() -> None:
        writer._add(WriteJob(endless))

    writer._add(WriteJob(endless))
    writer._add(WriteJob(lambda: done.append("queued")))
    assert writer.flush(LIMIT_S)
    assert done == ["queued"]


def crowd(writer: Writer, rank_s: float) -> list[Session]:
    """More one-shots than fit, each used later than the one before."""
    return [write(writer, f"one-shot {n}", 1000 + n, rank_s=rank_s + n) for n in range(2 * CAPACITY)]


def test_a_pinned_conversation_outlasts_all_that_come_after_it(tier: DiskTier, writer: Writer) -> None:
    pinned, other = write(writer, "pinned", 1, 2, rank_s=1.0), write(writer, "other", 5, 6, rank_s=2.0)
    tier.index.update_session("", "pinned", name=None, is_pinned=True)
    shots = crowd(writer, 10.0)
    assert (usable(tier.index, pinned).position, usable(tier.index, other).position) == (2, 0)
    assert usable(tier.index, shots[-1]).position == 1
    assert writer.skipped == {}


def test_of_a_pinned_conversation_the_last_snapshot_and_the_segments_stay(tier: DiskTier, writer: Writer) -> None:
    first, end = (record("snapshot", tokens=[1, 2][:stop]).info.key for stop in (1, 2))
    write(writer, "pinned", 1, 2, rank_s=1.0)
    tier.index.update_session("", "pinned", name=None, is_pinned=True)
    crowd(writer, 10.0)
    assert tier.index.present([first, end]) == {end}


def test_a_pinned_conversation_that_continues_stays_up_to_its_new_end(tier: DiskTier, writer: Writer) -> None:
    write(writer, "pinned", 1, 2, rank_s=1.0)
    tier.index.update_session("", "pinned", name=None, is_pinned=True)
    longer = write(writer, "pinned", 1, 2, 3, rank_s=1.5)
    crowd(writer, 10.0)
    assert usable(tier.index, longer).position == 3


def test_pins_that_fill_the_quota_stop_writing_and_are_reported(tier: DiskTier, writer: Writer) -> None:
    for number in range(CAPACITY):
        write(writer, f"pinned {number}", 1, number, rank_s=float(number))
        tier.index.update_session("", f"pinned {number}", name=None, is_pinned=True)
    tier.limit_bytes = tier.num_bytes + INDEX_SLACK_BYTES
    write(writer, "late", 7, rank_s=99.0)
    assert writer.skipped["no disk capacity: pinned conversations fill the quota"] > 0
    assert all(usable(tier.index, each).position == 2 for each in tier.index.pinned_sessions())
    for number in (3, 4, 5):
        tier.index.update_session("", f"pinned {number}", name=None, is_pinned=False)
    assert usable(tier.index, write(writer, "later", 8, rank_s=100.0)).position == 1


def test_what_a_live_conversation_needs_is_evicted_last(tier: DiskTier, writer: Writer, live: list[Session]) -> None:
    live.append(write(writer, "live", 1, 2, rank_s=1.0))
    crowd(writer, 10.0)
    assert usable(tier.index, live[0]).position == 2
    tier.limit_bytes = INDEX_SLACK_BYTES + INDEX_BYTES
    write(writer, "the last", 9, rank_s=99.0)
    assert usable(tier.index, live[0]).position == 0


def test_one_shots_are_evicted_before_a_long_conversation_of_half_an_hour_ago(tier: DiskTier, writer: Writer) -> None:
    now_s = 1e9
    long = write(writer, "long", 1, 2, rank_s=policy.rank_s(now_s - 1800, 10, 1.0))
    for number in range(2 * CAPACITY):
        shot = write(writer, f"title {number}", 1000 + number, rank_s=policy.rank_s(now_s + number, 1, 1.0))
    assert usable(tier.index, long).position == 2
    assert usable(tier.index, shot).position == 1


def test_a_new_conversation_stays_next_to_recent_long_ones_from_its_fourth_turn(tier: DiskTier, writer: Writer) -> None:
    now_s = 1e9
    for number in range(CAPACITY):
        write(writer, f"long {number}", 1000 + number, rank_s=policy.rank_s(now_s + number, 50, 1.0))
    tier.limit_bytes = tier.num_bytes + INDEX_SLACK_BYTES
    had = []
    for turn in (1, 2, 3, 4):
        new = write(writer, "new", *range(turn), rank_s=policy.rank_s(now_s + 100 + turn, turn, 1.0))
        had.append(usable(tier.index, new).position)
    assert had == [0, 0, 0, 4]


def test_no_more_is_evicted_than_the_record_needs(tier: DiskTier, writer: Writer) -> None:
    for number in range(CAPACITY):
        write(writer, f"full {number}", number, rank_s=float(number))
    kept_bytes = tier.num_bytes
    tier.limit_bytes = kept_bytes + INDEX_SLACK_BYTES
    for number in range(CAPACITY, 3 * CAPACITY):
        write(writer, f"one more {number}", number, rank_s=float(number))
        assert tier.num_bytes > kept_bytes - 2 * RECORD_BYTES, number
    assert writer.skipped == {}


def test_a_record_larger_than_any_evicted_one_takes_as_many_as_it_needs(tier: DiskTier, writer: Writer) -> None:
    for number in range(CAPACITY):
        write(writer, f"small {number}", number, rank_s=float(number))
    tier.limit_bytes = tier.num_bytes + INDEX_SLACK_BYTES
    large = record("segment", tokens=[99], num_bytes=5 * RECORD_BYTES)
    writer.put(large, RecordLabel("large", "", 99.0, 99.0))
    assert writer.flush(LIMIT_S)
    left = [info for info in tier.index.inventory() if info.kind == "segment"]
    assert large.info in left
    assert CAPACITY - 7 <= len(left) - 1 <= CAPACITY - 5


def test_a_shorter_end_stays_for_the_conversation_that_ends_there(tier: DiskTier, writer: Writer) -> None:
    ends_here = write(writer, "first", 1, 2, rank_s=1.0)
    write(writer, "second", 1, 2, 3, rank_s=2.0)
    write(writer, "second", 1, 2, 3, 4, rank_s=3.0)
    assert usable(tier.index, ends_here).infos[0].tokens == (1, 2)
    assert sorted(info.tokens for info in tier.index.inventory() if info.kind == "segment") == [(1, 2), (1, 2, 3, 4)]


def test_of_equal_rank_a_snapshot_goes_before_the_segment_that_it_needs(tier: DiskTier, writer: Writer) -> None:
    """A segment whose eviction makes its snapshots useless would take their bytes too."""
    own = [
        record(kind, tokens=[1, 2, 3][:stop], num_bytes=RECORD_BYTES) for kind, stop in (("segment", 3), ("snapshot", 2), ("snapshot", 3))
    ]
    for each in own:
        writer.put(each, RecordLabel("whole", "", 1.0, 1.0))
    assert writer.flush(LIMIT_S)
    tier.limit_bytes = tier.num_bytes + INDEX_SLACK_BYTES + RECORD_BYTES
    writer.put(record("segment", tokens=[99], num_bytes=3 * RECORD_BYTES // 2), RecordLabel("new", "", 99.0, 99.0))
    assert writer.flush(LIMIT_S)
    assert writer.skipped == {}
    assert usable(tier.index, Session("", "whole", "", 1.0, 1, 3, False, tuple(each.info.key for each in own))).position == 2


def test_nothing_is_evicted_for_a_record_that_would_not_fit_even_then(tier: DiskTier, writer: Writer) -> None:
    low = [write(writer, f"low {number}", number, rank_s=1.0) for number in range(CAPACITY // 2)]
    high = [write(writer, f"high {number}", 50 + number, rank_s=1000.0) for number in range(CAPACITY // 2)]
    tier.limit_bytes = tier.num_bytes + INDEX_SLACK_BYTES
    writer.put(record("segment", tokens=[99], num_bytes=(CAPACITY // 2 + 1) * RECORD_BYTES), RecordLabel("large", "", 99.0, 99.0))
    assert writer.flush(LIMIT_S)
    assert writer.skipped == {"no disk capacity: quota": 1}
    assert [usable(tier.index, each).position for each in (*low, *high)] == [1] * CAPACITY


def test_what_a_live_conversation_needs_is_evicted_no_more_than_the_rest_leaves_missing(
    tier: DiskTier, writer: Writer, live: list[Session]
) -> None:
    live += [write(writer, f"live {number}", 1 + number, rank_s=1.0 + number) for number in range(CAPACITY // 2)]
    rest = [write(writer, f"rest {number}", 50 + number, rank_s=10.0 + number) for number in range(CAPACITY // 2)]
    tier.limit_bytes = tier.num_bytes + INDEX_SLACK_BYTES
    writer.put(record("segment", tokens=[99], num_bytes=(CAPACITY // 2 + 1) * RECORD_BYTES), RecordLabel("large", "", 99.0, 99.0))
    assert writer.flush(LIMIT_S)
    assert writer.skipped == {}
    assert {usable(tier.index, each).position for each in rest} == {0}
    assert [usable(tier.index, each).position for each in live][-1] == 1


def test_a_record_that_needs_more_than_are_looked_up_at_first_takes_them(tier: DiskTier, writer: Writer) -> None:
    for number in range(50):
        writer.put(record("snapshot", tokens=[number], num_bytes=4000), RecordLabel("small", "", 1.0, 1.0))
    assert writer.flush(LIMIT_S)
    tier.limit_bytes = tier.num_bytes + INDEX_SLACK_BYTES
    writer.put(record("segment", tokens=[99], num_bytes=RECORD_BYTES * 3 // 4), RecordLabel("new", "", 99.0, 99.0))
    assert writer.flush(LIMIT_S)
    assert writer.skipped == {}
    assert any(info.kind == "segment" for info in tier.index.inventory())
