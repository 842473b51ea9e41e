"""The index answers what hangs from a node, by order of tokens, and reads no more rows than it returns."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records import HASHER, record

from forerun.bank.tier import database, history
from forerun.bank.tier.folder import hold, view
from forerun.bank.tier.format import file_bytes
from forerun.bank.tier.history import LostRecord, Memo, MemoAnchor, Session
from forerun.bank.tier.index import Index, RecordLabel, Totals
from forerun.errors import BankError
from forerun.state.record import RecordInfo

# Ids whose order as numbers is not the order of their bytes.
TOKEN = st.sampled_from([0, 1, 255, 256, 65536, 2**32 - 1])
PROMPT = st.lists(TOKEN, max_size=6)


def info(*tokens: int, kind: str = "snapshot") -> RecordInfo:
    return record(kind, tokens=list(tokens)).info


def filled(infos: list[RecordInfo]) -> Index:
    index = Index.in_memory()
    index.add(infos, 0.0)
    return index


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index.in_memory()
    yield index
    index.close()


@settings(max_examples=200, deadline=None)
@given(stored=st.lists(PROMPT, max_size=12), prompt=PROMPT, kind=st.sampled_from(["segment", "snapshot"]))
def test_along_finds_every_beginning_longest_first(stored: list[list[int]], prompt: list[int], kind: str) -> None:
    index = filled([info(*tokens, kind=kind) for tokens in stored])
    beginnings = {tuple(tokens) for tokens in stored if prompt[: len(tokens)] == tokens}
    assert [found.tokens for found in index.along(kind, HASHER.root, prompt)] == sorted(beginnings, key=len, reverse=True)
    assert index.along("snapshot" if kind == "segment" else "segment", HASHER.root, prompt) == []
    index.close()


@settings(max_examples=200, deadline=None)
@given(stored=st.lists(PROMPT, max_size=12), prompt=PROMPT)
def test_segment_over_and_nearest_agree_with_a_search_of_all(stored: list[list[int]], prompt: list[int]) -> None:
    index = filled([info(*tokens, kind="segment") for tokens in stored])
    shared = [sum(1 for n in range(len(prompt)) if prompt[: n + 1] == tokens[: n + 1]) for tokens in stored]
    num, following = index.nearest(HASHER.root, prompt)
    assert num == max(shared, default=0)
    assert not stored or [*prompt[:num], *following] in stored
    over = index.segment_over(HASHER.root, prompt)
    assert (over is not None) == any(tokens[: len(prompt)] == prompt for tokens in stored)
    if over is not None:
        assert list(over.tokens[: len(prompt)]) == prompt
        assert prompt not in stored or list(over.tokens) == prompt
    index.close()


def test_records_of_different_nodes_are_separate(index: Index) -> None:
    block = list(range(1024))
    deep = record("snapshot", tokens=[1], before=block).info
    index.add([info(1), info(2, kind="segment"), deep], 0.0)
    assert index.along("snapshot", deep.parent, [1, 2]) == [deep]


def test_find_returns_what_is_there(index: Index) -> None:
    index.add([info(1), info(2)], 0.0)
    assert index.find([info(2).key, info(3).key]) == {info(2).key: info(2)}
    assert index.find([]) == {}
    assert index.present([info(2).key, info(3).key]) == {info(2).key}


def test_a_row_that_is_there_stays_as_it_is(index: Index) -> None:
    index.add([info(1)], 5.0)
    index.touch({info(1).key: 9.0}, 6.0)
    index.add([info(1)], 7.0)
    (entry,) = index.snapshots()
    assert (entry.created_s, entry.used_s, entry.rank_s, entry.uses) == (5.0, 6.0, 9.0, 1)


def test_lowest_is_by_rank_then_the_end_of_a_conversation_first(index: Index) -> None:
    block = list(range(1024))
    infos = [info(1), info(2), record("segment", tokens=[3], before=block).info, info(4, kind="segment")]
    index.add(infos, 10.0)
    index.touch({infos[0].key: 9.0}, 11.0)
    index.touch({infos[1].key: 12.0}, 9.0)
    assert [entry.info for entry in index.lowest(3, ())] == [infos[0], infos[2], infos[3]]
    assert [entry.info for entry in index.snapshots()] == [infos[0], infos[1]]


def test_labels_are_stored(index: Index) -> None:
    index.add([info(1), info(2)], 0.0)
    index.label(info(1).key, RecordLabel("mine", "t", 1.0, 2.0))
    assert {entry.info.key: (entry.session, entry.tenant) for entry in index.snapshots()} == {
        info(1).key: ("mine", "t"),
        info(2).key: ("", ""),
    }


def test_removed_rows_are_gone(index: Index) -> None:
    index.add([info(1), info(2)], 0.0)
    index.remove([info(1).key, info(3).key])
    assert index.inventory() == [info(2)]
    assert index.keys("") == index.keys(info(2).key[:2]) == {info(2).key}
    assert index.keys("f" if info(2).key[0] != "f" else "e") == set()


def test_totals_follow_the_rows(index: Index) -> None:
    assert index.totals == Totals(0, 0, "", 0)
    index.add([info(1), info(2, kind="segment")], 0.0)
    index.add_written(info(3), 0.0, "2026-01-01")
    index.add_written(info(3), 0.0, "2026-01-02")
    assert index.totals == Totals(3 * file_bytes(info(1)), 0, "2026-01-02", file_bytes(info(3)))
    index.remove([info(1).key, info(4).key])
    index.note_session(Session("", "mine", "", 1.0, 1, 5, False, (info(2).key,)))
    assert index.totals == Totals(2 * file_bytes(info(1)), 1, "2026-01-02", file_bytes(info(3)))


def test_a_written_row_and_its_days_total_are_one_transaction(index: Index) -> None:
    refuse = "CREATE TRIGGER refuse BEFORE UPDATE OF written_bytes ON total BEGIN SELECT RAISE(ABORT, 'refused'); END"
    index._connection.execute(refuse)
    with pytest.raises(BankError, match="refused"):
        index.add_written(info(1), 0.0, "2026-01-01")
    assert index.inventory() == []


def test_totals_that_were_read_before_a_write_are_not_cached(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write between the read of the sums and their caching."""
    read, writers = index._rows, list[threading.Thread]()

    def overtaken(sql: str, *values: object) -> list[tuple[Any, ...]]:
        found = read(sql, *values)
        if not writers:
            writers.append(threading.Thread(target=index.add, args=([info(1)], 0.0)))
            writers[0].start()
            writers[0].join(0.2)
        return found

    monkeypatch.setattr(index, "_rows", overtaken)
    assert index.totals.record_bytes == 0
    writers[0].join()
    assert index.totals.record_bytes == file_bytes(info(1))


def test_sessions_are_stored_by_tenant_and_id(index: Index) -> None:
    mine = Session("a", "work", "", 1.0, 1, 5, False, (info(1).key, info(2).key))
    index.note_session(mine)
    index.note_session(replace(mine, tenant="b", keys=()))
    index.note_session(replace(mine, used_s=2.0, turns=2))
    assert index.session("a", "work") == replace(mine, used_s=2.0, turns=2)
    assert index.session("b", "work") == replace(mine, tenant="b", keys=())
    assert index.session("a", "other") is None
    index.add([info(2)], 0.0)
    index.forget_empty_sessions([("a", "work"), ("b", "work"), ("c", "none")])
    assert (index.session("b", "work"), index.totals.sessions) == (None, 1)


def test_a_conversation_that_is_noted_while_they_are_counted_counts_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, new = Index.session, Session("", "new", "", 1.0, 1, 5, False, ())
    writer = threading.Thread(target=index.note_session, args=[new])

    def session(self: Index, tenant: str, id: str) -> Session | None:
        found = look_up(self, tenant, id)
        writer.start()
        writer.join(0.2)
        return found

    monkeypatch.setattr(Index, "session", session)
    assert index.num_sessions([("", "new")]) == 1
    writer.join()
    assert index.totals.sessions == 1


def test_what_was_lost_is_remembered_for_a_while(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LOST_RECORDS", 2)
    index.note_lost([info(1), info(1, 2)], "evicted", "quota", 5.0)
    assert index.lost(HASHER.root, [1, 2, 3]) == LostRecord(2, "evicted", "quota", 5.0)
    assert index.lost(HASHER.root, [1, 3]) == LostRecord(1, "evicted", "quota", 5.0)
    assert index.lost(HASHER.root, [7]) is None
    index.note_lost([info(3)], "damaged", "bits", 6.0)
    assert index.lost(HASHER.root, [1, 3]) is None
    assert index.lost(HASHER.root, [3]) == LostRecord(1, "damaged", "bits", 6.0)


def test_identities_of_a_tenant_the_last_first(index: Index) -> None:
    fields = {root: HASHER.identity.fields | {"weights": root} for root in ("aa", "bb", "cc")}
    for number, root in enumerate(fields):
        index.note_identity(root, "t" if root != "cc" else "other", fields[root], float(number))
    assert index.identities("t", 5) == [fields["bb"], fields["aa"]]
    assert index.identities("t", 1) == [fields["bb"]]


ANCHOR = MemoAnchor(HASHER.root, HASHER.root, (1, 2))
MEMO = Memo("name", 2, b"data")


def test_a_memo_lives_as_long_as_a_segment_that_begins_with_its_tokens(index: Index) -> None:
    longer, other, shorter = info(1, 2, 3, kind="segment"), info(1, 2, 4, kind="segment"), info(1, kind="segment")
    index.add([longer, other, shorter, info(1, 2)], 0.0)
    index.note_memo(MEMO, ANCHOR)
    for gone, kept in ((shorter, [b"data"]), (longer, [b"data"]), (info(1, 2), [b"data"]), (other, [])):
        index.remove([gone.key])
        assert index.memos(HASHER.root, ["name", "another"]) == kept
    index.add([other], 0.0)
    assert index.memos(HASHER.root, ["name"]) == []


def test_a_memo_is_found_by_name_from_its_own_root_and_replaced(index: Index) -> None:
    index.add([info(1, 2, 3, kind="segment")], 0.0)
    for data in (b"old", b"new"):
        index.note_memo(replace(MEMO, data=data), ANCHOR)
    assert index.memos(HASHER.root, ["name"]) == [b"new"]
    assert index.memos("ab" * 16, ["name"]) == index.memos(HASHER.root, ["another"]) == []


@pytest.mark.parametrize("extra", [0, 1])
def test_a_memo_that_is_too_long_or_without_its_segment_is_not_stored(index: Index, extra: int) -> None:
    index.note_memo(MEMO, ANCHOR)
    assert index.memos(HASHER.root, ["name"]) == []
    index.add([info(1, 2, 3, kind="segment")], 0.0)
    index.note_memo(replace(MEMO, data=b"x" * (history.MOST_MEMO_BYTES + extra)), ANCHOR)
    assert len(index.memos(HASHER.root, ["name"])) == 1 - extra


LOOK_UPS: list[Callable[[Index], object]] = [
    lambda index: index.find(["ab" * 16]),
    lambda index: index.present(["ab" * 16]),
    lambda index: index.along("snapshot", HASHER.root, [1]),
    lambda index: index.segment_over(HASHER.root, [1]),
    lambda index: index.nearest(HASHER.root, [1]),
    lambda index: index.lowest(3, ["ab" * 16]),
    lambda index: index.touch({"ab" * 16: 0.0}, 0.0),
    lambda index: index.label("ab" * 16, RecordLabel("", "", 0.0, 0.0)),
    lambda index: index.remove(["ab" * 16]),
    lambda index: index.keys("ab"),
    lambda index: index.session("", "mine"),
    lambda index: index.is_end_of_another(info(1), "", "mine"),
    lambda index: index.pinned_sessions(),
    lambda index: index.owned("", "mine"),
    lambda index: index.bytes_of(["ab" * 16]),
    lambda index: index.lost(HASHER.root, [1]),
    lambda index: index.memos(HASHER.root, ["name"]),
    lambda index: index.note_memo(MEMO, ANCHOR),
]


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_no_look_up_reads_the_whole_table(look_up: Callable[[Index], object], index: Index) -> None:
    index.add([info(1, kind="segment"), info(2)], 0.0)
    statements: list[str] = []
    index._connection.set_trace_callback(statements.append)
    look_up(index)
    index._connection.set_trace_callback(None)
    checks = [sql for sql in statements if not sql.startswith(("BEGIN", "COMMIT", "--"))]
    plans = [step[3] for sql in checks for step in index._connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans
    assert not [step for step in plans if step.startswith("SCAN") and not {"rank", "json_each", "CONSTANT"} & set(step.split())]
    # The right part of an order: records of one rank and one node, which a turn writes few of.
    assert not [step for step in plans if "TEMP B-TREE" in step and "RIGHT PART" not in step]


def test_the_database_frees_deleted_bytes_and_bounds_its_log(tmp_path: Path) -> None:
    index = hold(tmp_path)
    for name, value in (("auto_vacuum", 1), ("journal_mode", "wal"), ("secure_delete", 1)):
        assert index._connection.execute(f"PRAGMA {name}").fetchone() == (value,)
    many = [info(*range(1000), i) for i in range(300)]
    for one in many:
        index.add([one], 0.0)
    assert (tmp_path / "index.db-wal").stat().st_size < 2 << 20
    full_bytes = index.num_bytes
    index.remove(one.key for one in many)
    index.close()
    assert sum(path.stat().st_size for path in index.paths if path.exists()) < full_bytes / 20


def test_failures_of_the_database_are_bank_errors(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index._connection.execute("DROP TABLE record")
    with pytest.raises(BankError, match="no such table"):
        index.find(["ab"])
    with pytest.raises(BankError):
        index.add([info(1)], 0.0)


DAMAGE: list[tuple[str, Callable[[Index], object]]] = [
    ("record SET tokens = x'010000'", lambda index: index.find([info(1).key])),
    ("record SET tokens = 'text'", lambda index: index.find([info(1).key])),
    ("record SET tokens = zeroblob(4100)", lambda index: index.find([info(1).key])),
    ("record SET kind = 'other'", lambda index: index.find([info(1).key])),
    ("record SET start = 'text'", lambda index: index.find([info(1).key])),
    ("record SET start = -1024", lambda index: index.find([info(1).key])),
    ("record SET start = 7", lambda index: index.find([info(1).key])),
    ("record SET num_bytes = -1", lambda index: index.find([info(1).key])),
    ("record SET parent = x'00', tokens = x'01000000'", lambda index: index.find([info(1).key])),
    ("record SET tokens = x'010000'", lambda index: index.lowest(1, ())),
    ("record SET rank_s = 'text'", lambda index: index.lowest(1, ())),
    ("record SET uses = -1", lambda index: index.entry(info(1).key)),
    ("session SET keys = 5", lambda index: index.session("", "mine")),
    ("session SET keys = x'00'", lambda index: index.session("", "mine")),
    ("session SET num_tokens = -1", lambda index: index.all_sessions()),
    ("session SET turns = 'text'", lambda index: index.sessions_of("", 5)),
    ("session SET used_s = 'text'", lambda index: index.all_sessions()),
    ("lost SET start = 'text'", lambda index: index.lost(HASHER.root, [1])),
    ("identity SET fields = '[]'", lambda index: index.identities("", 1)),
    ("identity SET fields = '{}'", lambda index: index.identity(HASHER.root)),
    ("identity SET fields = 5", lambda index: index.num_sessions_by_identity()),
    ("lost SET tokens = x'010000'", lambda index: index.lost(HASHER.root, [1])),
    ("identity SET fields = '{'", lambda index: index.identities("", 1)),
    ("identity SET fields = '{'", lambda index: index.last_root()),
]


@pytest.mark.parametrize(("damage", "look_up"), DAMAGE)
def test_a_row_that_cannot_be_decoded_is_a_bank_error(damage: str, look_up: Callable[[Index], object], index: Index) -> None:
    index.add([info(1)], 0.0)
    index.note_lost([info(1)], "evicted", "quota", 5.0)
    index.note_identity(HASHER.root, "", HASHER.identity.fields, 1.0)
    index.note_session(Session("", "mine", "", 1.0, 1, 1, False, (info(1).key,)))
    index.label(info(1).key, RecordLabel("mine", "", 1.0, 1.0))
    look_up(index)
    index._connection.execute(f"UPDATE {damage}")
    with pytest.raises(BankError, match="a row is damaged"):
        look_up(index)
    look_up(index)  # without it


def test_a_damaged_database_is_recreated(tmp_path: Path) -> None:
    hold(tmp_path).close()
    (tmp_path / "index.db").write_bytes(b"no database" * 1000)
    index = hold(tmp_path)
    index.add([info(1)], 0.0)
    index.close()


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    hold(tmp_path).close()
    with sqlite3.connect(tmp_path / "index.db") as connection:
        connection.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    connection.close()
    before = (tmp_path / "index.db").read_bytes()
    message = f"has format {database.VERSION + 1}, this version of forerun reads format {database.VERSION}"
    for opening in (hold, view):
        with pytest.raises(BankError, match=message):
            opening(tmp_path)
    assert (tmp_path / "index.db").read_bytes() == before
