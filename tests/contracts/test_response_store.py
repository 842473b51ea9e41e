"""The contract of stored responses, on disk and in RAM: found until removed, by their tenant alone, within their limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.records import files_under, record
from tests.talking import opened

from forerun.bank import bank as bank_module
from forerun.bank import response_store, stored
from forerun.bank.bank import Bank
from forerun.bank.response_store import ResponseStore
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.errors import BadRequestError, BankError, BankFullError, UnknownPreviousResponseError, UnknownResponseError
from forerun.values import StoredResponse

Open = Callable[..., Bank]


@pytest.fixture(params=["disk", "ram"])
def open_bank(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda **options: opened(tmp_path / "bank" if request.param == "disk" else None, **options)


@pytest.fixture
def bank(open_bank: Open) -> Iterator[Bank]:
    with closing(open_bank()) as bank:
        yield bank


def response(id: str, previous: str = "", text: str = "hello", session: str = "s") -> StoredResponse:
    return StoredResponse(id, previous, session, time.time(), {"id": id, "output": [{"text": text}]}, ({"role": "user", "content": "é"},))


def found(store: ResponseStore, *ids: str, tenant: str = "ann") -> list[str]:
    """Those of the ids that are stored."""
    return [id for id in ids if store._index.has_response(tenant, id)]


def test_one_returns_what_was_put(bank: Bank) -> None:
    given = response("a", "b")
    bank.responses.put("ann", given)
    assert bank.responses.one("ann", "a") == given


def test_another_tenants_is_as_unknown_as_none(bank: Bank) -> None:
    bank.responses.put("ann", response("a"))
    for act in (bank.responses.one, bank.responses.chain, bank.responses.remove):
        errors = []
        for id in ("a", "nowhere"):
            with pytest.raises(UnknownResponseError) as caught:
                act("bob", id)
            errors.append((str(caught.value).replace("nowhere", "a"), caught.value.hint, caught.value.param))
        assert errors[0] == errors[1]
    bank.responses.put("bob", response("a", text="Bob's"))
    assert bank.responses.one("ann", "a").body["output"] == [{"text": "hello"}]


def test_a_chain_begins_with_the_first_and_may_fork(bank: Bank) -> None:
    for id, previous in [("a", ""), ("b", "a"), ("c", "b"), ("d", "b")]:
        bank.responses.put("ann", response(id, previous))
    assert [each.id for each in bank.responses.chain("ann", "c")] == ["a", "b", "c"]
    assert [each.id for each in bank.responses.chain("ann", "d")] == ["a", "b", "d"]


def test_a_chain_with_a_gap_names_it(bank: Bank) -> None:
    for id, previous in [("a", ""), ("b", "a"), ("c", "b")]:
        bank.responses.put("ann", response(id, previous))
    bank.responses.remove("ann", "a")
    with pytest.raises(UnknownPreviousResponseError, match="'a' not found") as caught:
        bank.responses.chain("ann", "c")
    assert caught.value.param == "previous_response_id"
    assert bank.responses.one("ann", "c").previous == "b"


def test_a_circle_ends(bank: Bank) -> None:
    for id, previous in [("a", "b"), ("b", "a")]:
        bank.responses.put("ann", response(id, previous))
    assert [each.id for each in bank.responses.chain("ann", "a")] == ["b", "a"]
    bank.responses.put("ann", response("c", "a"))
    assert found(bank.responses, "a", "b", "c") == ["a", "b", "c"]


def test_a_chain_too_large_is_refused(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "MOST_BYTES", 2000)
    bank.responses.put("ann", response("a", text="x" * 1500))
    bank.responses.put("ann", response("b", "a", text="x" * 1500))
    assert bank.responses.chain("ann", "a")
    with pytest.raises(BadRequestError, match="larger than 2000 bytes"):
        bank.responses.chain("ann", "b")
    with pytest.raises(BankFullError, match="too large"):
        bank.responses.put("ann", response("c", text="x" * 3000))


def test_an_update_replaces_and_never_creates(bank: Bank) -> None:
    bank.responses.put("ann", response("a"))
    bank.responses.update("ann", changed := response("a", text="changed"))
    assert bank.responses.one("ann", "a") == changed
    bank.responses.remove("ann", "a")
    bank.responses.update("ann", response("a"))
    assert found(bank.responses, "a") == []


def test_the_least_recently_used_go_first_and_no_chain_loses_its_beginning(open_bank: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "zlib", Unpacked)
    size = len(response_store._packed(response("a1"), 1 << 20))
    monkeypatch.setattr(bank_module, "RESPONSE_RAM_BYTES", limit := 5 * size + size // 2)
    monkeypatch.setattr(bank_module, "RESPONSE_FRAC", limit / (1 << 30))
    with closing(open_bank()) as bank:
        for id, previous in [("a1", ""), ("b1", ""), ("a2", "a1"), ("b2", "b1"), ("a3", "a2")]:
            bank.responses.put("ann", response(id, previous))
        bank.responses.put("ann", response("c1"))
        assert found(bank.responses, "a1", "a2", "a3", "b1", "b2", "c1") == ["a1", "a2", "a3", "b1", "c1"]
        bank.responses.put("ann", response("b3", "b1"))
        assert found(bank.responses, "a1", "a2", "a3", "b1", "b3", "c1") == ["a1", "a2", "b1", "b3", "c1"]


class Unpacked:
    """Stands in for zlib, so that sizes follow from lengths."""

    @staticmethod
    def compress(text: bytes, level: int) -> bytes:
        return text


def test_what_nobody_uses_expires(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    for id, previous in [("a", ""), ("b", "")]:
        bank.responses.put("ann", response(id, previous))
    monkeypatch.setattr(response_store.time, "time", lambda: now_s + response_store.EXPIRY_S / 2)
    bank.responses.put("ann", response("c", "a"))
    monkeypatch.setattr(response_store.time, "time", lambda: now_s + response_store.EXPIRY_S * 1.1)
    bank.responses.put("bob", response("d"))
    assert found(bank.responses, "a", "b", "c") == ["a", "c"]


def test_a_wipe_removes_the_tenants_and_those_that_still_run(bank: Bank) -> None:
    bank.responses.put("ann", response("a"))
    bank.responses.put("bob", response("a"))
    late = response("late", session="other")
    bank.sessions.wipe("ann")
    bank.responses.put("ann", late)
    assert found(bank.responses, "a", "late") == []
    assert found(bank.responses, "a", tenant="bob") == ["a"]
    bank.responses.put("ann", response("new"))
    assert found(bank.responses, "new") == ["new"]


def test_those_of_a_conversation_go_with_it(bank: Bank) -> None:
    bank.responses.put("ann", response("a", session="s"))
    bank.responses.put("ann", response("b", session="t"))
    late = response("late", session="s")
    bank.responses.forget("ann", "s")
    bank.responses.put("ann", late)
    assert found(bank.responses, "a", "b", "late") == ["b"]


# --- on disk


def test_responses_survive_the_process(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        bank.responses.put("ann", given := response("a"))
    with closing(opened(tmp_path / "bank")) as bank:
        assert bank.responses.one("ann", "a") == given


def test_a_database_without_the_tables_gets_them(tmp_path: Path) -> None:
    opened(tmp_path / "bank").close()
    with closing(hold(tmp_path / "bank")) as index:
        index._connection.executescript("DROP TABLE response; DROP TABLE response_data;")
    with closing(opened(tmp_path / "bank")) as bank:
        bank.responses.put("ann", given := response("a"))
        assert bank.responses.one("ann", "a") == given


def test_a_removed_response_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "zlib", Unpacked)
    with closing(opened(tmp_path / "bank")) as bank:
        bank.responses.put("ann", response("a", text="a secret word" * 1000))
        assert is_written(tmp_path, b"a secret word")
        bank.responses.remove("ann", "a")
        assert not is_written(tmp_path, b"a secret word")


def is_written(folder: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in files_under(folder))


def disk_of(bank: Bank) -> DiskTier:
    assert bank._disk is not None
    return bank._disk


def test_a_wipe_by_a_command_removes_them(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        for owner in ("ann", "bob"):
            bank.responses.put(owner, response("a"))
        stored.wipe(disk_of(bank), "ann", ())
        assert (found(bank.responses, "a"), found(bank.responses, "a", tenant="bob")) == ([], ["a"])
        bank.responses.put("ann", response("b", session="s"))
        stored.remove(disk_of(bank), "ann", "s", ())
        assert found(bank.responses, "b") == []
        stored.wipe_all(disk_of(bank))
        assert found(bank.responses, "a", tenant="bob") == []


def test_every_byte_counts_for_the_day_and_the_folder(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        disk, given = disk_of(bank), response("a", text="".join(map(str, range(100_000))))
        held_bytes, size = disk.num_bytes, len(response_store._packed(given, 1 << 20))
        bank.responses.put("ann", given)
        assert disk.written_today_bytes == size > 100_000
        assert disk.num_bytes >= held_bytes + size
        disk.daily_limit_bytes = size
        with pytest.raises(BankFullError, match="today") as caught:
            bank.responses.put("ann", replace(given, id="b"))
        assert caught.value.reason == "daily write budget"
        assert found(bank.responses, "a", "b") == ["a"]


def test_a_response_evicts_records_from_a_full_disk(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        disk = disk_of(bank)
        records = [record(tokens=[i], num_bytes=100_000) for i in range(4)]
        for each in records:
            disk.put(each)
        disk.index._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        disk.limit_bytes = disk.num_bytes + INDEX_SLACK_BYTES + 1000
        bank.responses.put("ann", response("a", text="".join(map(str, range(20_000)))))
        assert found(bank.responses, "a") == ["a"]
        assert len(disk.index.inventory()) == 3
        assert disk.num_bytes <= disk.limit_bytes - INDEX_SLACK_BYTES


def test_a_damaged_response_is_an_error_and_then_unknown(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        for id in ("a", "b"):
            bank.responses.put("ann", response(id))
        disk_of(bank).index._connection.execute("UPDATE response_data SET data = x'00' WHERE number = 1")
        with pytest.raises(BankError, match="checksum"):
            bank.responses.one("ann", "a")
        with pytest.raises(UnknownResponseError):
            bank.responses.one("ann", "a")
        assert bank.responses.one("ann", "b")
