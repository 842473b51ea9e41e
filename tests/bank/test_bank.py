"""The bank over turns of the fake family: forks, limits, damage, other tenants. contracts/test_restore.py checks the bits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests import talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.records import StuckDisk, path_of
from tests.running import differing, read
from tests.talking import IDENTITY, SUFFIX, TurnResult
from tests.waiting import LIMIT_S

from forerun.bank import writer
from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.live import CaptureUnit, LiveConversation
from forerun.bank.match import PrefixChain
from forerun.bank.tier import format
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.history import Session
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.bank.writer import Writer
from forerun.errors import BankFullError
from forerun.state.layout import Contiguous, Paged
from forerun.state.record import SEGMENT_TOKENS, Record, RecordInfo
from forerun.state.store import Arena

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
opened, turn = partial(talking.opened, family=FAMILY), partial(talking.turn, family=FAMILY)
FIRST = [*tiny.words("system", 30), tiny.END, *tiny.words("question", 100)]
TOKEN_BYTES, SNAPSHOT_BYTES = FAMILY.spec.bytes_per_token, FAMILY.spec.bytes_per_snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bank"


@pytest.fixture
def bank(folder: Path) -> Iterator[Bank]:
    with closing(opened(folder)) as bank:
        yield bank


class Home:
    """A folder and the bank in it, which can be reopened."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bank = folder, opened(folder)

    def reopen(self, **other: Any) -> None:
        assert self.bank.flush(LIMIT_S)
        self.bank.close()
        self.bank = opened(self.folder, **other)


@pytest.fixture
def home(folder: Path) -> Iterator[Home]:
    home = Home(folder)
    yield home
    home.bank.close()


def origin(result: TurnResult) -> tuple[str, int]:
    return result.restored.source, result.restored.reused_tokens


def exact(result: TurnResult, prompt: list[int]) -> bool:
    """Whether the answer equals that of an empty bank."""
    with closing(opened(None)) as nothing:
        return result.stored == turn(nothing, prompt).stored


def inventory(bank: Bank) -> list[RecordInfo]:
    """What is on disk, when all is written."""
    assert bank.flush(LIMIT_S)
    assert bank._disk is not None
    return sorted(bank._disk.index.inventory(), key=lambda info: (info.kind, info.stop))


def damage(folder: Path, info: RecordInfo) -> None:
    with path_of(folder, info.key).open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))


# --- one conversation


def test_the_first_turn_is_cold_and_reports_why(bank: Bank) -> None:
    result = turn(bank, FIRST)
    assert origin(result) == ("cold", 0)
    assert result.restored.miss_reason.text == "no stored conversation begins like this prompt"


def test_a_conversation_keeps_its_name(home: Home) -> None:
    first = turn(home.bank, FIRST)
    second = turn(home.bank, first.stored + tiny.words(2, 40))
    home.reopen()
    third = turn(home.bank, second.stored + tiny.words(3, 40))
    assert (first.restored.source, second.restored.source, third.restored.source) == ("cold", "ram", "ssd")
    assert first.restored.session == second.restored.session == third.restored.session != ""


@pytest.mark.parametrize("variant", ["ram", "ssd"])
def test_a_repeated_first_request_computes_at_most_its_suffix(home: Home, variant: str) -> None:
    turn(home.bank, FIRST)
    if variant == "ssd":
        home.reopen()
    result = turn(home.bank, FIRST)
    assert result.restored.source == variant
    assert result.restored.reused_tokens >= len(FIRST) - SUFFIX


def test_a_requested_session_id_is_used(bank: Bank) -> None:
    first = turn(bank, FIRST, session="mine")
    assert first.restored.session == "mine"
    assert origin(turn(bank, first.stored + tiny.words(2, 40), session="mine")) == ("ram", len(first.stored))


def test_a_turn_writes_about_its_own_bytes(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[RecordInfo] = []
    put = DiskTier.put

    def noted(tier: DiskTier, record: Record) -> None:
        written.append(record.info)
        put(tier, record)

    monkeypatch.setattr(DiskTier, "put", noted)
    stored: list[int] = []
    for number, num in enumerate([SEGMENT_TOKENS + 100, 40, 40, SEGMENT_TOKENS, 40]):
        before = len(stored)
        written.clear()
        stored = turn(bank, stored + tiny.words(number, num)).stored
        assert bank.flush(LIMIT_S)
        new = len(stored) - before
        tail = before % SEGMENT_TOKENS  # an open segment is written again
        assert sum(i.num_bytes for i in written if i.kind == "segment") == (tail + new) * TOKEN_BYTES
        assert sum(i.num_bytes for i in written if i.kind == "snapshot") == 2 * SNAPSHOT_BYTES
    segments = [i for i in inventory(bank) if i.kind == "segment"]
    assert sum(len(i.tokens) for i in segments) == len(stored)  # and what the new one holds is dropped


@pytest.mark.parametrize("num", [SEGMENT_TOKENS - 1, SEGMENT_TOKENS, SEGMENT_TOKENS + 1])
def test_a_conversation_may_end_at_the_border_of_a_segment(home: Home, num: int) -> None:
    result = turn(home.bank, tiny.words("border", num - 19))
    assert len(result.stored) == num
    for token in (5, 6):
        home.reopen()
        assert origin(turn(home.bank, [*result.stored, token])) == ("ssd", num)


def test_capturing_is_bounded(bank: Bank) -> None:
    turn(bank, tiny.words("long", SEGMENT_TOKENS + 10))
    pending = sum(len(live.pending) for live in bank._live)
    assert bank.stats.health().pending_writes >= pending == 2 + 2
    for left in reversed(range(pending)):
        assert bank.capture_one()
        assert sum(len(live.pending) for live in bank._live) == left
    assert not bank.capture_one()


def test_a_hit_in_ram_copies_nothing_however_long_the_conversation(bank: Bank) -> None:
    result = turn(bank, tiny.words("long", 8 * SEGMENT_TOKENS))
    while bank.capture_one():
        pass
    (live,) = bank._live
    buffers = [id(array) for array in live.cache.store.buffers]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    restored = bank.restore(result.stored, tenant="", session=None, layout=Contiguous(), headroom_tokens=20)
    assert (restored.source, restored.reused_tokens) == ("ram", len(result.stored))
    assert [id(array) for array in restored.cache.store.buffers] == buffers
    assert mx.get_peak_memory() - before < 16 * TOKEN_BYTES


def test_saving_takes_memory_for_the_queue_and_one_unit_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, unit_bytes = StuckDisk(monkeypatch), SEGMENT_TOKENS * TOKEN_BYTES
    monkeypatch.setattr(writer, "QUEUE_BYTES", 2 * unit_bytes)
    with closing(opened(folder)) as bank:
        result = turn(bank, tiny.words("long", 8 * SEGMENT_TOKENS))
        held, before = bank.stats.ram_bytes, mx.get_active_memory()
        mx.reset_peak_memory()
        while bank.capture_one():
            assert bank.stats.ram_bytes - held <= 2 * unit_bytes + unit_bytes
        assert mx.get_peak_memory() - before <= 2 * unit_bytes, "a unit's rows, and its bytes in one piece"
        assert bank.stats.health().pending_writes > 6
        disk.may_write.set()
        assert bank.flush(LIMIT_S)
        assert origin(turn(bank, result.stored)) == ("ram", len(result.stored))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_drafting_changes_nothing_of_what_is_reused(folder: Path, is_restarted: bool) -> None:
    found = []
    for depth in (0, 3):
        home, result = Home(folder / str(depth)), []
        for number in range(3):
            result.append(turn(home.bank, (result[-1].stored if result else FIRST) + tiny.words(number, 50), depth=depth))
            if is_restarted:
                home.reopen()
        found.append([origin(each) for each in result])
        home.bank.close()
    assert found[0] == found[1]


def test_what_is_broken_or_is_not_the_state_of_its_tokens_is_refused(bank: Bank) -> None:
    tokens = tiny.words(0, 50)
    broken, other = read(FAMILY, tokens), read(FAMILY, tokens)
    broken.drop()
    for cache, result in ((broken, tokens), (other, tokens[:-1])):
        with pytest.raises(ValueError, match="is not the state after"):
            bank.remember(cache, result, [cache.snapshot()], FinishedTurn("s", "", 1, 0, 1))
    assert bank.stats.health().sessions == 0


def test_a_restore_reads_the_segments_below_one_snapshot_and_reports_the_bytes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    first = turn(home.bank, tiny.words("long", 2 * SEGMENT_TOKENS + 100))
    second = turn(home.bank, first.stored + tiny.words(2, 3 * SEGMENT_TOKENS))
    prompt = second.stored[: 4 * SEGMENT_TOKENS + 50] + tiny.words("edited", 20)  # its rows are stored far beyond the last snapshot
    home.reopen()
    read: list[Path] = []
    monkeypatch.setattr(format, "read", lambda path, call=format.read: read.append(path) or call(path))
    restored = turn(home.bank, prompt).restored
    assert (restored.source, restored.reused_tokens) == ("ssd", len(first.stored))
    assert len(read) == 3 + 1
    assert restored.read_bytes == sum(path.stat().st_size for path in read) > 0
    assert turn(home.bank, prompt).restored.read_bytes == 0


# --- forks


@pytest.mark.parametrize("names", [(None, None), ("a", "b")])
@pytest.mark.parametrize("variant", ["ram", "ssd"])
def test_two_conversations_with_a_common_prefix_both_continue(home: Home, names: tuple[Any, Any], variant: str) -> None:
    result = [turn(home.bank, FIRST[:31] + tiny.words(who, 60), session=name) for who, name in zip("ab", names, strict=True)]
    for number in range(3):
        if variant == "ssd":
            home.reopen()
        for i, name in enumerate(names):
            prompt = result[i].stored + tiny.words((i, number), 30)
            after = turn(home.bank, prompt, session=name)
            assert origin(after) == (variant, len(result[i].stored))
            assert exact(after, prompt)
            result[i] = after


@pytest.mark.parametrize(("variant", "reused"), [("ram", 300), ("ssd", 300 - SUFFIX)])
def test_of_two_with_a_common_prefix_the_deeper_snapshot_is_used(home: Home, variant: str, reused: int) -> None:
    """The first shares more tokens with the prompt, the second has the deeper snapshot within them."""
    far = turn(home.bank, [*FIRST, *tiny.words("long", 600)]).stored
    near = turn(home.bank, far[:300])
    if variant == "ssd":
        home.reopen()
    result = turn(home.bank, [*far[:600], *tiny.words("edited", 30)])
    assert near.restored.reused_tokens == 31
    assert origin(result) == (variant, reused)
    assert result.restored.miss_reason.shared_tokens == 600


def test_the_same_conversation_under_two_names_is_two(bank: Bank) -> None:
    first = turn(bank, FIRST, session="a")
    prompt = first.stored + tiny.words(2, 40)
    result = [turn(bank, prompt, session=name) for name in ("a", "b", "a", "b")]
    assert [t.restored.session for t in result] == ["a", "b", "a", "b"]
    assert [t.restored.source for t in result] == ["ram"] * 4
    assert len({tuple(t.stored) for t in result}) == 1


def test_two_names_on_the_same_tokens_are_copied_once(bank: Bank) -> None:
    forked: list[str] = []
    result = {name: turn(bank, FIRST, session=name) for name in "ab"}
    for number in range(3):
        for name in "ab":
            result[name] = turn(bank, result[name].stored + tiny.words(number, 30), session=name)
            assert result[name].restored.source == "ram"
            forked += filter(None, [result[name].restored.forked_from])
    assert result["a"].stored == result["b"].stored
    assert len(forked) <= 1


def test_a_second_conversation_forks_the_first_one_even_where_records_reach_as_deep(bank: Bank) -> None:
    first = turn(bank, FIRST[:31] + tiny.words("one", 500))
    assert bank.flush(LIMIT_S)
    second = turn(bank, FIRST[:31] + tiny.words("two", 60))
    assert (origin(second), second.restored.read_bytes, second.restored.forked_from) == (("ram", 31), 0, first.restored.session)
    assert second.restored.session != first.restored.session
    assert bank.stats.health().sessions == bank.stats.health().live_sessions == 2
    assert origin(turn(bank, first.stored + tiny.words(2, 20))) == ("ram", len(first.stored))


def test_what_a_fork_shares_counts_once() -> None:
    """Else one conversation with many forks would have others evicted for memory that nobody holds."""
    with closing(opened(None)) as bank:
        first, alone_bytes = turn(bank, FIRST, session="a", layout=Paged(16)), bank.stats.ram_bytes
        turn(bank, first.stored, session="b", layout=Paged(16))
        assert SNAPSHOT_BYTES > 0
        assert sum(live.num_bytes for live in bank._live) > bank.stats.ram_bytes
        held = {id(s): s.num_bytes for live in bank._live for s in live.snapshots}
        assert len(held) < sum(len(live.snapshots) for live in bank._live)
        used, _ = bank.paged_blocks
        page_bytes = 16 * TOKEN_BYTES
        assert abs(bank.stats.ram_bytes - used * page_bytes - sum(held.values()) - 2 * SNAPSHOT_BYTES) <= len(bank._live)
        assert bank.stats.ram_bytes < 2 * alone_bytes


def test_a_look_up_asks_no_conversation_that_begins_otherwise(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    for who in range(5):
        turn(bank, tiny.words(("talk", who), SEGMENT_TOKENS + 50))
    result = turn(bank, FIRST + tiny.words("mine", SEGMENT_TOKENS))
    compared: list[int] = []
    monkeypatch.setattr(
        LiveConversation,
        "block",
        lambda live, depth, call=LiveConversation.block: compared.append(len(found := call(live, depth))) or found,
    )
    assert bank.restore(result.stored, tenant="other", session=None, layout=Contiguous(), headroom_tokens=0).source == "cold"
    assert compared == []
    reach = bank._live.best(PrefixChain.of(bank._hasher(""), result.stored), None, ())
    assert reach is not None
    assert reach.snapshot.position == len(result.stored)
    assert len(compared) <= 2


def test_an_edit_of_the_last_turn_continues_in_the_live_cache(bank: Bank) -> None:
    first = turn(bank, FIRST)
    second = turn(bank, first.stored + tiny.words(2, 10))
    assert bank.flush(LIMIT_S)
    edited = turn(bank, first.stored + tiny.words("edited", 10))
    assert origin(edited) == ("ram", len(first.stored))
    assert edited.restored.session == second.restored.session
    assert bank.stats.health().sessions == 1


def test_snapshots_of_what_was_cut_off_are_gone(bank: Bank) -> None:
    first = turn(bank, FIRST)
    turn(bank, first.stored + tiny.words(2, 10))  # makes snapshots at positions that the edit fills with other tokens
    edited = turn(bank, first.stored + tiny.words("edited", 100))
    assert bank.stats.health().sessions == 1
    prompt = edited.stored[: len(first.stored) + 50] + tiny.words(3, 20)
    third = turn(bank, prompt)
    assert third.restored.reused_tokens == len(first.stored)
    assert exact(third, prompt)


def test_a_cache_is_never_in_two_hands(bank: Bank) -> None:
    first = turn(bank, FIRST)
    prompt = first.stored + tiny.words(2, 20)
    one, other = (bank.restore(prompt, tenant="", session=None, layout=Contiguous(), headroom_tokens=20) for _ in range(2))
    assert one.cache is not other.cache
    assert one.source == "ram"
    read(FAMILY, prompt, other.cache)
    assert differing(one.cache, read(FAMILY, prompt[: one.reused_tokens])) == []


# --- limits


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
@pytest.mark.parametrize("names", [("a", "a"), ("a", "b")])
def test_what_cannot_be_copied_is_skipped_and_counted_and_ends_no_turn(
    bank: Bank, names: tuple[str, str], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(live: LiveConversation, unit: CaptureUnit) -> Record:
        raise error("no room")

    result = turn(bank, FIRST, session=names[0])
    with monkeypatch.context() as patched:
        patched.setattr(LiveConversation, "capture", failing)
        for number in range(3):
            prompt = result.stored + tiny.words(number, 20)
            result = turn(bank, prompt, session=names[1])
            assert exact(result, prompt)
        assert bank.stats.skipped["it could not be copied"] > 0
    result = turn(bank, result.stored + tiny.words("after", 20), session=names[1])
    assert result.restored.source == "ram"
    assert bank.flush(LIMIT_S)
    bank._ram_limit_bytes = 0
    bank.trim()
    assert origin(turn(bank, result.stored, session=names[1])) == ("ssd", len(result.stored))


def test_a_fork_and_its_origin_are_evicted_on_their_own(folder: Path) -> None:
    with closing(opened(None)) as bank:
        old = turn(bank, tiny.words("old", 300))
        both = [turn(bank, FIRST, session=name) for name in "ab"]
        assert [result.restored.forked_from for result in both] == ["", "a"]
        for name in ("old", "a"):
            bank._ram_limit_bytes = bank.stats.ram_bytes - 1
            assert bank.trim() == 1, name
        bank._ram_limit_bytes = 1 << 30
        assert origin(turn(bank, old.stored)) == ("cold", 0)
        assert origin(turn(bank, both[1].stored, session="b")) == ("ram", len(both[1].stored))


def test_one_shots_do_not_evict_a_long_conversation(bank: Bank) -> None:
    result = turn(bank, FIRST)
    for number in range(4):
        result = turn(bank, result.stored + tiny.words(number, 20))
    assert bank.flush(LIMIT_S)
    bank._ram_limit_bytes = 2 * bank.stats.ram_bytes
    for title in range(20):
        turn(bank, tiny.words(("title", title), 200))
    assert origin(turn(bank, result.stored + tiny.words("next", 20))) == ("ram", len(result.stored))


def test_the_last_turns_snapshots_are_evicted_no_earlier_than_the_segments_that_need_them(bank: Bank) -> None:
    result = turn(bank, tiny.words("mine", 300))
    turn(bank, result.stored + tiny.words("next", 20))
    assert bank.flush(LIMIT_S)
    assert bank._disk
    entries = bank._disk.index.lowest(20, ())
    segment = max(entry.rank_s for entry in entries if entry.info.kind == "segment")
    snapshots = [entry.rank_s for entry in sorted(entries, key=lambda entry: entry.info.stop) if entry.info.kind == "snapshot"]
    assert snapshots[-2:] == [segment, segment], "at the end of the prompt and of the answer"
    assert len(snapshots) > 2
    assert all(rank < segment for rank in snapshots[:-2])


def test_a_conversation_that_lives_in_ram_does_not_age_on_disk(folder: Path) -> None:
    """Its beginning was written long ago: what others wrote since must be evicted first, or all that follows it is unusable."""
    with closing(opened(folder, disk_limit_bytes=6 << 20)) as bank:
        result = turn(bank, tiny.words("mine", 2 * SEGMENT_TOKENS))
        for who in range(12):
            turn(bank, tiny.words(("other", who), 2 * SEGMENT_TOKENS))
            result = turn(bank, result.stored + tiny.words(who, 20))
            assert bank.flush(LIMIT_S)
        assert bank.stats.skipped == {}
    with closing(opened(folder)) as bank:
        assert origin(turn(bank, result.stored + tiny.words("next", 20))) == ("ssd", len(result.stored))


def test_the_beginning_of_a_conversation_is_used_with_every_turn(folder: Path) -> None:
    """Once it is in RAM no more, its end would outlast what it is of no use without."""
    ranks_s = []
    with closing(opened(folder)) as bank:
        tokens = tiny.words("mine", SEGMENT_TOKENS)
        for _ in range(3):
            tokens = [*turn(bank, tokens).stored, *tiny.words("next", 20)]
            assert bank.flush(LIMIT_S)
            entries = bank._disk.index.lowest(100, ())  # type: ignore[union-attr]
            ranks_s.append({entry.rank_s for entry in entries if entry.info.kind == "segment"})
    assert [len(each) for each in ranks_s] == [1, 1, 1]
    assert ranks_s == sorted(ranks_s, key=min)
    assert ranks_s[0] != ranks_s[1] != ranks_s[2]


def test_a_conversation_larger_than_the_quota_does_not_eat_its_own_beginning(folder: Path) -> None:
    with closing(opened(folder, ram_limit_bytes=0, disk_limit_bytes=INDEX_SLACK_BYTES + 5 * SEGMENT_TOKENS * TOKEN_BYTES)) as bank:
        turn(bank, tiny.words("large", 9 * SEGMENT_TOKENS))
        assert bank.flush(LIMIT_S)
        assert bank.stats.skipped["no disk capacity: quota"] > 0
        assert next(info.start for info in inventory(bank) if info.kind == "segment") == 0


def test_the_least_recently_used_is_evicted_first(bank: Bank) -> None:
    result = {who: turn(bank, tiny.words(who, 300)) for who in "abc"}
    result["a"] = turn(bank, result["a"].stored + tiny.words(2, 20))
    assert bank.flush(LIMIT_S)
    bank._ram_limit_bytes = bank.stats.ram_bytes - 1
    assert bank.trim() == 1
    sources = {who: origin(turn(bank, result[who].stored + tiny.words(3, 20)))[0] for who in "acb"}
    assert sources == {"a": "ram", "b": "ssd", "c": "ram"}


def test_what_leaves_ram_was_captured_before(folder: Path) -> None:
    with closing(opened(folder, ram_limit_bytes=0)) as bank:
        result = turn(bank, FIRST)
        assert bank.stats.health().sessions == 0
        assert bank.flush(LIMIT_S)
        assert origin(turn(bank, result.stored + tiny.words(2, 20))) == ("ssd", len(result.stored))


def test_a_conversation_larger_than_ram_comes_back_whole(folder: Path) -> None:
    prompt = tiny.words("large", 2 * SEGMENT_TOKENS)
    with closing(opened(folder, ram_limit_bytes=SEGMENT_TOKENS * TOKEN_BYTES)) as bank:
        result = turn(bank, prompt)
        assert bank.flush(LIMIT_S)
        assert bank.stats.ram_bytes <= SEGMENT_TOKENS * TOKEN_BYTES
        again = turn(bank, result.stored + tiny.words(2, 20))
        assert origin(again) == ("ssd", len(result.stored))
        assert exact(again, result.stored + tiny.words(2, 20))


def test_state_that_waits_for_a_slow_disk_is_due(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StuckDisk(monkeypatch)
    with closing(opened(folder, ram_limit_bytes=0)) as bank:
        result = turn(bank, FIRST)
        follow_up = result.stored + tiny.words(2, 20)
        assert bank.stats.health().pending_writes > 0
        assert bank.is_write_due(follow_up, tenant="", session=None)
        assert not bank.is_write_due(tiny.words("stranger", 20), tenant="", session=None)
        disk.may_write.set()
        assert bank.flush(LIMIT_S)
        assert not bank.is_write_due(follow_up, tenant="", session=None)
        assert origin(turn(bank, follow_up)) == ("ssd", len(result.stored))


def test_a_slow_disk_delays_no_request_that_does_not_need_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StuckDisk(monkeypatch)
    with closing(opened(folder)) as bank:
        result = turn(bank, FIRST)
        while bank.capture_one():
            pass
        follow_up = result.stored + tiny.words(2, 20)
        assert not bank.is_write_due(follow_up, tenant="", session=None)
        assert origin(turn(bank, follow_up)) == ("ram", len(result.stored))
        assert origin(turn(bank, tiny.words("stranger", 20))) == ("cold", 0)
        assert disk.num_written == 0
        disk.may_write.set()


def test_the_next_turn_waits_for_no_disk_and_all_is_saved_after_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StuckDisk(monkeypatch)
    monkeypatch.setattr(writer, "QUEUE_BYTES", 1)
    first = [*FIRST, *tiny.words("large", 3 * SEGMENT_TOKENS)]
    with closing(opened(folder)) as bank:
        result = turn(bank, first)
        again = turn(bank, result.stored + tiny.words(2, 20))
        assert origin(again) == ("ram", len(result.stored))
        assert disk.num_written == 0
        edited = turn(bank, again.stored[: len(result.stored) + 3] + tiny.words("edit", 20))
        assert origin(edited) == ("ram", len(result.stored))
        disk.may_write.set()
        assert bank.flush(LIMIT_S)
        assert bank.stats.skipped == {}, "an edit is no fault"
        back = turn(bank, again.stored)
        assert "not stored: the conversation was edited before it was written" in back.restored.miss_reason.text, (
            "what was cut off by the edit"
        )
    with closing(opened(folder)) as bank:
        assert origin(turn(bank, edited.stored)) == ("ssd", len(edited.stored))
    with closing(opened(folder)) as bank:
        assert origin(turn(bank, first[:31] + tiny.words("other", 20))) == ("ssd", 31), "the snapshot after the first message is lost"


def test_what_is_larger_than_ram_and_queue_streams_to_a_slow_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = DiskTier.put
    monkeypatch.setattr(writer, "QUEUE_BYTES", 1)
    monkeypatch.setattr(DiskTier, "put", lambda tier, record: (time.sleep(0.02), put(tier, record))[1])
    with closing(opened(folder, ram_limit_bytes=0)) as bank:
        result = turn(bank, tiny.words("large", 4 * SEGMENT_TOKENS))
        assert bank.flush(LIMIT_S)
        assert bank.stats.skipped == {}
        assert origin(turn(bank, result.stored)) == ("ssd", len(result.stored))


def test_a_stuck_disk_does_not_block_requests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, in_vain, wait_for = StuckDisk(monkeypatch), list[float](), threading.Condition.wait_for

    def waiting(*arguments: Any) -> bool:
        is_so = wait_for(*arguments)
        in_vain.extend(arguments[2:] if not is_so else ())
        return is_so

    monkeypatch.setattr(writer, "QUEUE_BYTES", 1)
    monkeypatch.setattr(writer, "STUCK_S", 0.2)
    monkeypatch.setattr(threading.Condition, "wait_for", waiting)
    with closing(opened(folder, ram_limit_bytes=0)) as bank:
        turn(bank, FIRST)
        num_skipped = bank.stats.skipped["the disk is stuck"]
        assert 0 < in_vain.count(writer.STUCK_S) < num_skipped, "each record waits again"
        assert disk.num_written == 0
        disk.may_write.set()
        assert bank.flush(LIMIT_S)
        result = turn(bank, tiny.words("after", 200))
        assert bank.flush(LIMIT_S)
        assert origin(turn(bank, result.stored)) == ("ssd", len(result.stored))


def test_what_passes_to_the_writer_during_a_look_is_pending(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = vars(Writer)["num_waiting"].fget

    def passing(writer: Writer) -> int:
        assert writer.flush(LIMIT_S)
        waiting: int = read(writer)
        while bank.capture_one():
            pass
        return waiting

    with closing(opened(folder)) as bank:
        turn(bank, FIRST)
        monkeypatch.setattr(Writer, "num_waiting", property(passing))
        assert bank.stats.health().pending_writes > 0


def test_something_is_pending_until_the_conversation_itself_is_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note, pending = Writer.note, list[int]()

    def noting(writer: Writer, session: Session) -> None:
        assert writer.flush(LIMIT_S)
        pending.append(bank.stats.health().pending_writes)
        note(writer, session)

    monkeypatch.setattr(Writer, "note", noting)
    with closing(opened(folder)) as bank:
        turn(bank, FIRST)
        assert bank.flush(LIMIT_S)
    assert pending == [1]


def test_without_a_disk_what_leaves_ram_is_gone(bank: Bank) -> None:
    with closing(opened(None, ram_limit_bytes=0)) as forgetful:
        result = turn(forgetful, FIRST)
        assert (forgetful.stats.ram_bytes, forgetful.stats.health().sessions) == (0, 0)
        assert origin(turn(forgetful, result.stored)) == ("cold", 0)


def test_the_oldest_leaves_a_full_disk(folder: Path) -> None:
    limit_bytes = 4 << 20
    with closing(opened(folder, ram_limit_bytes=0, disk_limit_bytes=limit_bytes)) as bank:
        result = {}
        for who in range(4):
            result[who] = turn(bank, tiny.words(who, 4 * SEGMENT_TOKENS))
            assert bank.flush(LIMIT_S)
            assert bank.stats.health().disk_bytes <= limit_bytes
        assert bank.stats.skipped == {}
        sources = [origin(turn(bank, result[who].stored)) for who in (3, 0)]
        assert sources == [("ssd", len(result[3].stored)), ("cold", 0)]


def test_a_full_disk_is_reported_and_requests_are_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tier: DiskTier, record: Record) -> None:
        raise BankFullError("no space left", reason="disk")

    monkeypatch.setattr(DiskTier, "put", full)
    with closing(opened(folder)) as bank:
        result = turn(bank, FIRST)
        assert bank.flush(LIMIT_S)
        assert bank.stats.skipped == {"no disk capacity: disk": 4}
        assert origin(turn(bank, result.stored + tiny.words(2, 20))) == ("ram", len(result.stored))


def test_skipped_records_are_reported_until_turns_are_written_completely_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tier: DiskTier, record: Record) -> None:
        if record.info.kind == "snapshot":
            raise BankFullError("no space left", reason="disk")
        put(tier, record)

    put = DiskTier.put
    with closing(opened(folder)) as bank:
        with monkeypatch.context() as patched:
            patched.setattr(DiskTier, "put", full)
            for number in range(3):
                result = turn(bank, tiny.words(number, 200))
                assert bank.flush(LIMIT_S)
                assert bank.stats.skipped["no disk capacity: disk"] > 0, "though its segment was written"
        for _ in range(2):
            result = turn(bank, result.stored + tiny.words("after", 20))
            assert bank.flush(LIMIT_S)
        assert bank.stats.skipped == {}


def test_the_daily_budget_stops_writing_and_no_request(folder: Path) -> None:
    with closing(opened(folder)) as bank:
        assert bank._disk is not None
        bank._disk.daily_limit_bytes = 20_000
        result = turn(bank, FIRST)
        assert bank.flush(LIMIT_S)
        assert bank.stats.skipped["no disk capacity: daily write budget"] > 0
        health = bank.stats.health()
        assert 0 < health.written_today_bytes <= health.daily_write_limit_bytes == 20_000
        assert origin(turn(bank, result.stored + tiny.words(2, 20))) == ("ram", len(result.stored))


def test_health_counts_conversations_wherever_they_are(home: Home) -> None:
    for name in "abc":
        turn(home.bank, FIRST, session=name)
    turn(home.bank, FIRST, session="a")
    assert home.bank.flush(LIMIT_S)
    assert home.bank.stats.health().sessions == 3
    home.reopen()
    assert (home.bank.stats.health().sessions, home.bank.stats.health().live_sessions) == (3, 0)
    turn(home.bank, FIRST, session="d")
    assert (home.bank.stats.health().sessions, home.bank.stats.health().live_sessions) == (4, 1)
    with closing(opened(None)) as bank:
        for name in "ab":
            turn(bank, FIRST, session=name)
        assert bank.stats.health().sessions == 2


# --- strangers


def test_another_tenant_finds_nothing(home: Home) -> None:
    result = turn(home.bank, FIRST, tenant="alice")
    assert origin(turn(home.bank, result.stored, tenant="bob")) == ("cold", 0)
    home.reopen()
    assert origin(turn(home.bank, result.stored, tenant="bob")) == ("ssd", len(result.stored) - SUFFIX)  # his own by now
    assert origin(turn(home.bank, result.stored, tenant="")) == ("cold", 0)
    assert origin(turn(home.bank, result.stored, tenant="alice")) == ("ssd", len(result.stored))


def test_another_tenant_cannot_name_a_session_of_mine(bank: Bank) -> None:
    result = turn(bank, FIRST, tenant="alice", session="work")
    assert origin(turn(bank, result.stored, tenant="bob", session="work")) == ("cold", 0)


@pytest.mark.parametrize("field", ["weights", "mtp_head", "tokenizer", "template", "kv_dtype", "numerics"])
def test_state_of_another_identity_is_no_candidate(home: Home, field: str) -> None:
    result = turn(home.bank, FIRST)
    other: dict[str, Any] = {field: "other"}
    home.reopen(identity=replace(IDENTITY, **other))
    assert origin(turn(home.bank, result.stored)) == ("cold", 0)
    home.reopen()
    assert origin(turn(home.bank, result.stored)) == ("ssd", len(result.stored))


# --- damage


@pytest.fixture
def two_turns(folder: Path) -> list[int]:
    """The stored tokens of two turns on disk: snapshots at 31, at the end of the first turn, before the suffix, and at the end."""
    with closing(opened(folder)) as bank:
        first = turn(bank, FIRST)
        stored = turn(bank, first.stored + tiny.words(2, SEGMENT_TOKENS)).stored
        assert bank.flush(LIMIT_S)
    return stored


def damaged(folder: Path, which: Callable[[RecordInfo], bool]) -> int:
    with closing(opened(folder)) as bank:
        chosen = [info for info in inventory(bank) if which(info)]
    for info in chosen:
        damage(folder, info)
    return len(chosen)


@pytest.mark.parametrize(
    ("which", "reused"),
    [
        (lambda info: info.kind == "snapshot" and info.stop > 1190, -19 - SUFFIX),
        (lambda info: info.kind == "snapshot" and info.stop > 1150, len(FIRST) + 19),
        (lambda info: info.kind == "segment" and info.start > 0, len(FIRST) + 19),
        (lambda info: info.kind == "segment" and info.start == 0, 0),
        (lambda info: True, 0),
    ],
    ids=["last snapshot", "both late snapshots", "last segment", "first segment", "everything"],
)
def test_a_damaged_record_is_set_aside_and_the_next_best_taken(
    folder: Path, two_turns: list[int], which: Callable[[RecordInfo], bool], reused: int
) -> None:
    num = damaged(folder, which)
    assert num
    prompt, expected = two_turns + tiny.words(3, 20), reused if reused >= 0 else len(two_turns) + reused
    with closing(opened(folder)) as bank:
        result = turn(bank, prompt)
        assert origin(result) == ("ssd" if expected else "cold", expected)
        assert result.restored.miss_reason.text.startswith("set aside: ")
        assert "checksum" in result.restored.miss_reason.text
        assert exact(result, prompt)
        assert 1 <= bank.stats.health().quarantined <= num
        assert bank.flush(LIMIT_S)
    with closing(opened(folder)) as bank:  # what was missing was written again
        assert origin(turn(bank, result.stored + tiny.words(4, 20))) == ("ssd", len(result.stored))


def test_damaged_token_ids_in_the_index_are_a_miss(folder: Path, two_turns: list[int]) -> None:
    with closing(opened(folder)) as bank:
        assert bank._disk is not None
        bank._disk.index._connection.execute("UPDATE record SET tokens = substr(tokens, 1, length(tokens) - 1)")
        result = turn(bank, two_turns)
        assert origin(result) == ("cold", 0)
        assert "the bank failed" in result.restored.miss_reason.text
        assert exact(result, two_turns)


def test_a_record_that_vanished_is_skipped(folder: Path, two_turns: list[int]) -> None:
    with closing(opened(folder)) as bank:
        last = [info for info in inventory(bank) if info.kind == "snapshot"][-1]
        assert (last.kind, last.stop) == ("snapshot", len(two_turns))
        path_of(folder, last.key).unlink()
        result = turn(bank, two_turns)
        assert origin(result) == ("ssd", len(two_turns) - 19 - SUFFIX)
        assert exact(result, two_turns)


def test_a_record_of_another_model_under_the_right_name_is_refused(folder: Path, two_turns: list[int]) -> None:
    """As if the spec had changed without the identity: the bytes are whole, but they do not fit."""
    with closing(opened(folder)) as bank:
        strange = Arena(replace(FAMILY.spec, draft_layers=FAMILY.spec.draft_layers * 2))
        bank._sources = replace(bank._sources, arena=strange)
        restored = bank.restore(two_turns, tenant="", session=None, layout=Contiguous(), headroom_tokens=0)
        assert (restored.source, restored.reused_tokens) == ("cold", 0)
        assert "does not fit" in restored.miss_reason.text
        assert bank.stats.health().quarantined > 0
        again = bank.restore(two_turns, tenant="", session=None, layout=Contiguous(), headroom_tokens=0)
        assert "does not fit" not in again.miss_reason.text
