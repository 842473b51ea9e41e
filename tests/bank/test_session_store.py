"""Conversations as objects: how they are listed, what a pin holds, what is removed with one and what stays for the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests import records, talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.records import bytes_under, files_under
from tests.talking import TurnResult
from tests.waiting import LIMIT_S

from forerun.bank import stored
from forerun.bank.bank import Bank
from forerun.bank.restore import RestoredState
from forerun.bank.tier.base import Tier
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, holder
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.decode.prefill import prefill
from forerun.errors import BadRequestError, UnknownSessionError
from forerun.state.cache import Snapshot
from forerun.state.layout import Paged
from forerun.state.record import SEGMENT_TOKENS, Record, RecordInfo, token_bytes

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
opened, turn = partial(talking.opened, family=FAMILY), partial(talking.turn, family=FAMILY)
SYSTEM = [*tiny.words("system", 30), tiny.END]
TOKEN_BYTES = FAMILY.spec.bytes_per_token


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bank"


@pytest.fixture
def bank(folder: Path) -> Iterator[Bank]:
    with closing(opened(folder)) as bank:
        yield bank


def disk_of(bank: Bank) -> DiskTier:
    assert bank._disk is not None
    return bank._disk


def talk(bank: Bank, session: str | None, num: int = 200, **other: str) -> TurnResult:
    return turn(bank, [*SYSTEM, *tiny.words(session, num)], session=session, **other)


def on(bank: Bank, result: TurnResult, session: str | None, num: int = 20) -> TurnResult:
    return turn(bank, result.stored + tiny.words((session, len(result.stored)), num), session=session)


def reused(result: TurnResult) -> tuple[str, int]:
    return result.restored.source, result.restored.reused_tokens


# --- listing


def test_a_conversation_is_listed_with_where_it_is(bank: Bank) -> None:
    result = talk(bank, "mine")
    info = bank.sessions.one("", "mine")
    assert (info.id, info.name, info.turns, info.tokens, info.pinned) == ("mine", "", 1, len(result.stored), False)
    assert (info.state, info.stored_tokens, info.ram_bytes > 0) == ("writing", 0, True)
    assert bank.flush(LIMIT_S)
    info = bank.sessions.one("", "mine")
    assert (info.state, info.stored_tokens, info.reason) == ("ssd", len(result.stored), "")
    assert info.disk_bytes > len(result.stored) * TOKEN_BYTES
    bank._ram_limit_bytes = 0
    bank.trim()
    assert bank.sessions.one("", "mine").ram_bytes == 0


def test_what_could_not_be_written_is_listed_with_the_reason(folder: Path) -> None:
    with closing(opened(folder, disk_limit_bytes=INDEX_SLACK_BYTES + 1000)) as bank:
        talk(bank, "mine")
        assert bank.flush(LIMIT_S)
        info = bank.sessions.one("", "mine")
        assert (info.state, info.stored_tokens, info.reason) == ("skipped", 0, "not stored: no disk capacity: size")


def test_without_a_disk_all_is_in_ram() -> None:
    with closing(opened(None)) as bank:
        talk(bank, "mine")
        info = bank.sessions.one("", "mine")
        assert (info.state, info.disk_bytes, info.stored_tokens) == ("ram", 0, 0)
        assert bank.sessions.all("", 10) == [info]
        with pytest.raises(BadRequestError, match="nothing is stored on disk"):
            bank.sessions.update("", "mine", name="x", is_pinned=None)


def test_the_list_is_by_last_use_and_of_one_owner(bank: Bank) -> None:
    result = talk(bank, "first")
    talk(bank, "second")
    assert bank.flush(LIMIT_S)
    bank._ram_limit_bytes = 0
    bank.trim()
    on(bank, result, "first")
    talk(bank, "theirs", tenant="bob")
    assert [info.id for info in bank.sessions.all("", 10)] == ["first", "second"]
    assert [info.id for info in bank.sessions.all("", 1)] == ["first"]
    assert [info.id for info in bank.sessions.all("bob", 10)] == ["theirs"]


def test_a_name_and_a_pin_stay_while_the_conversation_continues(folder: Path) -> None:
    with closing(opened(folder)) as bank:
        result = talk(bank, "mine")
        bank.sessions.update("", "mine", name="a walk", is_pinned=True)
        bank.sessions.update("", "mine", name=None, is_pinned=None)
        on(bank, result, "mine")
        assert bank.flush(LIMIT_S)
    with closing(opened(folder)) as bank:
        info = bank.sessions.one("", "mine")
        assert (info.name, info.pinned, info.turns) == ("a walk", True, 2)


def test_a_conversation_of_its_own_id_that_only_begins_alike_has_had_no_turns(folder: Path) -> None:
    """Eviction goes by turns; a new conversation must not count those of all that share its prefix."""
    with closing(opened(folder)) as bank:
        first = [talk(bank, f"number {i}") for i in range(3)]
        assert [reused(result)[1] for result in first[1:]] == [len(SYSTEM)] * 2
        bank.sessions.fork("", "number 0", fork_id="fork", name="")
        assert bank.flush(LIMIT_S)
    with closing(opened(folder)) as bank:
        assert reused(talk(bank, "another")) == ("ssd", len(SYSTEM))
        on(bank, first[0], "fork")
        on(bank, first[1], "number 1")
        assert {info.id: info.turns for info in bank.sessions.all("", 10)} == {
            "number 0": 1, "number 1": 2, "number 2": 1, "another": 1, "fork": 2,
        }  # fmt: skip


@pytest.mark.parametrize("session", ["mine", None])
def test_a_conversation_counts_its_turns_over_restarts(session: str | None, folder: Path) -> None:
    result = None
    for _ in range(2):
        with closing(opened(folder)) as bank:
            for _ in range(3):
                result = on(bank, result, session) if result else talk(bank, session)
            assert bank.flush(LIMIT_S)
    with closing(opened(folder)) as bank:
        assert [info.turns for info in bank.sessions.all("", 10)] == [6]


# --- owners


@pytest.mark.parametrize("act", ["one", "remove", "update", "fork"])
def test_another_owners_conversation_is_not_there(bank: Bank, act: str) -> None:
    result = talk(bank, "mine", tenant="ann")
    assert bank.flush(LIMIT_S)
    arguments = {"update": {"name": "x", "is_pinned": True}, "fork": {"fork_id": "theirs", "name": ""}}.get(act, {})
    with pytest.raises(UnknownSessionError):
        getattr(bank.sessions, act)("bob", "mine", **arguments)
    bank.sessions.wipe("bob")
    assert bank.sessions.all("bob", 10) == []
    assert turn(bank, result.stored, tenant="bob", session="mine").restored.source == "cold"
    assert bank.sessions.one("ann", "mine").name == ""


def test_what_still_waits_for_the_disk_is_of_the_conversation_and_is_not_copied_again(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, put = threading.Event(), DiskTier.put
    copied: list[str] = []

    def waiting(tier: DiskTier, record: Record) -> None:
        copied.append(record.info.key)
        assert may_write.wait(20)
        put(tier, record)

    monkeypatch.setattr(DiskTier, "put", waiting)
    result = talk(bank, "mine", SEGMENT_TOKENS + 100)
    on(bank, result, "mine", 60)
    may_write.set()
    assert bank.flush(10)
    index = disk_of(bank).index
    session = index.session("", "mine")
    assert session
    assert len(result.stored) in {info.stop for info in index.find(session.keys).values() if info.kind == "snapshot"}
    assert len(copied) == len(set(copied))


# --- removal


@pytest.mark.parametrize("variant", ["live", "pending", "records", "disk"])
def test_a_conversation_that_is_removed_is_gone_everywhere(folder: Path, bank: Bank, variant: str) -> None:
    result = talk(bank, "mine", SEGMENT_TOKENS + 100)
    if variant == "records":
        talk(bank, "other")
        turn(bank, result.stored, session="beside")
        bank.sessions.remove("", "beside")
        bank.sessions.remove("", "other")
    elif variant != "pending":
        assert bank.flush(LIMIT_S)
    if variant == "disk":
        bank._ram_limit_bytes = 0
        bank.trim()
    bank.sessions.remove("", "mine")
    assert bank.sessions.all("", 10) == []
    assert disk_of(bank).index.inventory() == []
    assert disk_of(bank).num_bytes == bytes_under(folder)
    with pytest.raises(UnknownSessionError):
        bank.sessions.remove("", "mine")
    assert turn(bank, result.stored, session="mine").restored.source == "cold"


@pytest.mark.parametrize("removed", ["first", "second"])
def test_what_another_conversation_needs_stays(folder: Path, removed: str) -> None:
    with closing(opened(folder)) as bank:
        first = talk(bank, "first", SEGMENT_TOKENS + 100)
        second = on(bank, first, "second", 60)
        assert bank.flush(LIMIT_S)
        bank.sessions.remove("", removed)
        kept, result = ("second", second) if removed == "first" else ("first", first)
        assert bank.sessions.one("", kept).stored_tokens == len(result.stored)
    with closing(opened(folder)) as bank:
        assert [info.id for info in bank.sessions.all("", 10)] == [kept]
        assert reused(on(bank, result, kept)) == ("ssd", len(result.stored))
        assert disk_of(bank).wait_until_reconciled(LIMIT_S)
        words = first.stored if removed == "first" else second.stored[len(first.stored) :]
        if removed == "second":
            assert not [info for info in disk_of(bank).index.inventory() if info.tokens[-len(words) :] == tuple(words)]


def test_what_another_conversation_needs_that_is_not_written_yet_stays(folder: Path) -> None:
    with closing(opened(folder)) as bank:
        first = talk(bank, "first", SEGMENT_TOKENS + 100)
        assert bank.flush(LIMIT_S)
        second = on(bank, first, "second", 60)
        bank.sessions.remove("", "first")
        assert bank.flush(LIMIT_S)
    with closing(opened(folder)) as bank:
        assert reused(on(bank, second, "second")) == ("ssd", len(second.stored))


def test_earlier_snapshots_and_branches_of_a_conversation_are_removed_with_it(bank: Bank) -> None:
    result = [talk(bank, "mine")]
    for number in range(8):
        result.append(turn(bank, result[-1].stored + tiny.words(number, 40), session="mine"))
    turn(bank, result[-2].stored + tiny.words("edited", 40), session="mine")
    assert bank.flush(LIMIT_S)
    bank.sessions.remove("", "mine")
    assert disk_of(bank).index.inventory() == []


def test_a_removal_reads_the_other_conversations_twice_however_much_goes(bank: Bank) -> None:
    talk(bank, "other")
    result = talk(bank, "mine", 2 * SEGMENT_TOKENS)
    for number in range(3):
        result = on(bank, result, "mine", 60 + number)
    assert bank.flush(10)
    statements: list[str] = []
    disk_of(bank).index._connection.set_trace_callback(statements.append)
    bank.sessions.remove("", "mine")
    assert sum("FROM session" in statement and "id <>" in statement for statement in statements) == 2
    assert [info.id for info in bank.sessions.all("", 10)] == ["other"]


def test_a_lost_index_still_leads_to_all_of_a_conversation_that_was_used_since(folder: Path) -> None:
    with closing(opened(folder)) as bank:
        result = talk(bank, "mine")
        assert bank.flush(LIMIT_S)
    (folder / "index.db").unlink()
    with closing(opened(folder)) as bank:
        assert disk_of(bank).wait_until_reconciled(LIMIT_S)
        on(bank, result, "mine")
        assert bank.flush(LIMIT_S)
        bank.sessions.remove("", "mine")
        assert disk_of(bank).index.inventory() == []


def test_what_was_wiped_can_begin_again(bank: Bank) -> None:
    for _ in range(2):
        result = talk(bank, "mine")
        assert result.restored.source == "cold"
        assert bank.flush(LIMIT_S)
        assert disk_of(bank).index.identities("", 5) == [talking.IDENTITY.fields]
        bank.sessions.wipe("")


# --- lost pages


@pytest.mark.parametrize("has_disk", [True, False], ids=["disk", "ram"])
def test_conversations_whose_pages_are_lost_are_restored_from_elsewhere_with_the_reason(
    folder: Path, has_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(folder if has_disk else None)) as bank:
        result = turn(bank, [*SYSTEM, *tiny.words("mine", 200)], session="mine", layout=Paged(16))
        assert bank.flush(LIMIT_S)
        (live,) = bank._live
        with monkeypatch.context() as context:
            context.setattr(mx, "eval", lambda arrays: 1 / 0)
            live.cache.store.recover()
        again = turn(bank, result.stored, session="mine", layout=Paged(16))
        assert reused(again) == (("ssd", len(result.stored)) if has_disk else ("cold", 0))
        assert "its pages were lost with a failed step" in again.restored.miss_reason.text
        assert reused(on(bank, again, "mine")) == ("ram", len(again.stored))


# --- a damaged index


LAST = "WHERE rowid = (SELECT max(rowid) FROM record)"


@pytest.mark.parametrize(
    "damage",
    [
        f"record SET tokens = x'010000' {LAST}",
        f"record SET tokens = 5 {LAST}",
        f"record SET start = -1024 {LAST}",
        "identity SET fields = '[]'",
        "session SET keys = 5",
    ],
)
def test_a_damaged_row_is_a_miss_with_the_reason_and_costs_no_later_turn(folder: Path, damage: str) -> None:
    with closing(opened(folder)) as bank:
        result = talk(bank, "mine", 300)
        assert bank.flush(LIMIT_S)
    with closing(opened(folder)) as bank:
        assert disk_of(bank).wait_until_reconciled(LIMIT_S)
        disk_of(bank).index._connection.execute(f"UPDATE {damage}")
        prompts = [[*stored, *tiny.words(number, 50)] for number, stored in enumerate([SYSTEM, result.stored] * 2)]
        reasons = [turn(bank, prompt, session=f"n{len(prompt)}").restored.miss_reason.text for prompt in prompts]
        assert sum("a row is damaged" in reason for reason in reasons) == 1
        assert bank.flush(LIMIT_S)
        bank.sessions.all("", 10)
    with closing(opened(folder)) as bank:
        assert disk_of(bank).wait_until_reconciled(LIMIT_S)
        assert reused(turn(bank, result.stored, session="mine")) == ("ssd", len(result.stored))


# --- while a turn runs


@contextmanager
def before_it_is_stored(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    """What `act` does happens when the next turn's answer is complete, but not stored yet."""
    remember = Bank.remember

    def acting(bank: Bank, *turn: Any) -> None:
        act()
        remember(bank, *turn)

    with monkeypatch.context() as context:
        context.setattr(Bank, "remember", acting)
        yield


@pytest.mark.parametrize(
    "act", [lambda bank: bank.sessions.remove("", "mine"), lambda bank: bank.sessions.wipe("")], ids=["remove", "wipe"]
)
@pytest.mark.parametrize("is_first", [True, False], ids=["first turn", "second turn"])
@pytest.mark.parametrize("has_disk", [True, False], ids=["disk", "ram"])
def test_a_conversation_that_is_removed_while_its_turn_runs_is_not_stored(
    act: Callable[[Bank], object], is_first: bool, has_disk: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(folder if has_disk else None)) as bank:
        result = None if is_first else talk(bank, "mine", 300)
        with before_it_is_stored(monkeypatch, lambda: act(bank)):
            result = on(bank, result, "mine") if result else talk(bank, "mine", 300)
        assert bank.flush(LIMIT_S)
        assert bank.sessions.all("", 10) == []
        assert list(bank._live) == []
        if has_disk:
            assert disk_of(bank).index.inventory() == []
            assert traces(folder, result.stored[len(SYSTEM) :]) == []
        again = talk(bank, "mine", 300)
        assert again.restored.source == "cold"
        assert [info.turns for info in bank.sessions.all("", 10)] == [1], "a new turn begins the conversation again"


def test_other_turns_that_run_while_a_conversation_is_removed_are_stored(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"mine": talk(bank, "mine"), "other": talk(bank, "other")}
    with before_it_is_stored(monkeypatch, lambda: bank.sessions.remove("", "mine")):
        result["other"] = on(bank, result["other"], "other")
    with before_it_is_stored(monkeypatch, lambda: bank.sessions.wipe("bob")):
        on(bank, result["other"], "other")
    assert [(info.id, info.turns) for info in bank.sessions.all("", 10)] == [("other", 3)]


@pytest.mark.parametrize(
    "act", [lambda bank: bank.sessions.remove("", "mine"), lambda bank: bank.sessions.wipe("")], ids=["remove", "wipe"]
)
@pytest.mark.parametrize("is_early", [True, False], ids=["before it can be forked", "after"])
def test_a_conversation_that_is_removed_while_its_turn_runs_is_not_forked(
    act: Callable[[Bank], object], is_early: bool, bank: Bank
) -> None:
    prompt = [*SYSTEM, *tiny.words("mine", 2 * SEGMENT_TOKENS)]
    restored = bank.restore(prompt, tenant="", session="mine", layout=talking.CONTIGUOUS, headroom_tokens=0)
    snapshots: list[Snapshot] = []
    if is_early:
        act(bank)
    running = bank.run(restored, prompt, snapshots, tenant="")
    for new in prefill(FAMILY, restored.cache, prompt, [SEGMENT_TOKENS]):
        snapshots += new
    if not is_early:
        assert begun(bank, prompt).forked_from == "mine"
        act(bank)
    again = begun(bank, prompt)
    assert (again.source, again.forked_from, again.miss_reason.stored) == ("cold", "", ())
    bank.end_run(running)


def begun(bank: Bank, prompt: list[int]) -> RestoredState[Any]:
    return bank.restore(prompt, tenant="", session=None, layout=talking.CONTIGUOUS, headroom_tokens=0)


def test_nothing_more_of_a_prompt_is_saved_once_its_conversation_is_removed(bank: Bank) -> None:
    prompt = [*SYSTEM, *tiny.words("mine", 3 * SEGMENT_TOKENS)]
    restored = bank.restore(prompt, tenant="", session="mine", layout=talking.CONTIGUOUS, headroom_tokens=0)
    saver = bank.prefill_saver(restored, prompt, tenant="", message_end=len(prompt))
    assert saver
    for number, new in enumerate(prefill(FAMILY, restored.cache, prompt, [SEGMENT_TOKENS, 2 * SEGMENT_TOKENS])):
        if number == 3:
            bank.sessions.remove("", "mine")
        saver.save(new)
    assert bank.flush(LIMIT_S)
    assert disk_of(bank).index.inventory() == []


def test_a_fork_and_a_name_during_a_turn_are_of_what_is_stored(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    first = talk(bank, "mine", 300)
    assert bank.flush(LIMIT_S)

    def act() -> None:
        assert bank.sessions.fork("", "mine", fork_id="fork", name="").tokens == len(first.stored)
        bank.sessions.update("", "mine", name="a walk", is_pinned=None)

    with before_it_is_stored(monkeypatch, act):
        on(bank, first, "mine")
    assert {info.id: (info.name, info.turns) for info in bank.sessions.all("", 10)} == {"mine": ("a walk", 2), "fork": ("", 1)}
    assert reused(on(bank, first, "fork")) == ("ram", len(first.stored))


def test_what_a_turn_that_ends_during_a_removal_shares_with_it_is_written_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = stored.remove
    with closing(opened(folder)) as bank:
        first = talk(bank, "first", SEGMENT_TOKENS + 100)
        assert bank.flush(LIMIT_S)
        second: list[TurnResult] = []

        def interrupted(tier: Tier, tenant: str, id: str, others: Collection[str]) -> list[RecordInfo]:
            if tier is disk_of(bank):
                second.append(on(bank, first, "second", 60))
            return remove(tier, tenant, id, others)

        monkeypatch.setattr(stored, "remove", interrupted)
        bank.sessions.remove("", "first")
        assert bank.flush(LIMIT_S)
    with closing(opened(folder)) as bank:
        assert reused(on(bank, second[0], "second")) == ("ssd", len(second[0].stored))


# --- forks


@pytest.mark.parametrize("variant", ["ram", "ssd"])
@pytest.mark.parametrize("removed", ["mine", "fork"])
def test_a_fork_shares_the_prefix_continues_alone_and_outlives_the_other(folder: Path, variant: str, removed: str) -> None:
    with closing(opened(folder)) as bank:
        result = {"mine": talk(bank, "mine", 300)}
        made = bank.sessions.fork("", "mine", fork_id="fork", name="the other way")
        assert (made.id, made.name, made.tokens, made.state) == ("fork", "the other way", len(result["mine"].stored), "ssd")
        before = {info.key for info in disk_of(bank).index.inventory()}
        result["fork"] = result["mine"]
        for who in ("fork", "mine"):
            if variant == "ssd":
                bank._ram_limit_bytes = 0
                bank.trim()
            after = on(bank, result[who], who, 40)
            assert (after.restored.reused_tokens, after.restored.session) == (len(result[who].stored), who)
            result[who] = after
        assert bank.flush(LIMIT_S)
        assert result["mine"].stored != result["fork"].stored
        bank.sessions.remove("", removed)
        (kept,) = bank.sessions.all("", 10)
        assert kept.stored_tokens == len(result[kept.id].stored)
        assert not before & {info.key for info in disk_of(bank).index.inventory() if info.kind == "segment"}
    with closing(opened(folder)) as bank:
        assert reused(on(bank, result[kept.id], kept.id)) == ("ssd", len(result[kept.id].stored))


def test_a_fork_copies_nothing_and_needs_an_id_of_its_own(bank: Bank) -> None:
    talk(bank, "mine", 300)
    assert bank.flush(LIMIT_S)
    before = disk_of(bank).index.totals.record_bytes
    bank.sessions.update("", "mine", name=None, is_pinned=True)
    made = bank.sessions.fork("", "mine", fork_id=None, name="")
    assert (len(made.id), made.pinned) == (12, False)
    assert disk_of(bank).index.totals.record_bytes == before
    with pytest.raises(BadRequestError, match="there is a conversation 'mine' already"):
        bank.sessions.fork("", "mine", fork_id="mine", name="")


# --- nothing is left


def traces(folder: Path, tokens: list[int]) -> list[str]:
    """Files under the folder in which eight of these tokens stand one after the other, wherever."""
    pieces = [token_bytes(tokens[start : start + 8]) for start in range(0, len(tokens) - 8, 4)]
    return [str(path) for path in files_under(folder) if any(piece in path.read_bytes() for piece in pieces)]


@pytest.mark.parametrize("act", ["remove", "wipe", "in the folder"])
def test_what_is_removed_leaves_no_bytes_in_the_folder(folder: Path, act: str) -> None:
    with closing(opened(folder)) as bank:
        result = [talk(bank, "secret", 300)]
        for number in range(3):
            result.append(on(bank, result[-1], "secret", 30 + number))
        other = talk(bank, "other", tenant="bob") if act == "wipe" else None
        assert bank.flush(LIMIT_S)
        own = result[-1].stored[len(SYSTEM) :]
        assert len(traces(folder, own)) > 3
        disk_of(bank).set_aside(max(disk_of(bank).index.inventory(), key=lambda info: (info.kind == "snapshot", info.stop)).key)
        disk_of(bank).index.note_lost(disk_of(bank).index.inventory(), "evicted", "for the test", 1.0)
        if act == "remove":
            bank.sessions.remove("", "secret")
        elif act == "wipe":
            assert bank.sessions.wipe("") == 1
        if act != "in the folder":
            assert traces(folder, own) == []
            assert disk_of(bank).num_bytes == bytes_under(folder)
        if other:
            assert reused(turn(bank, other.stored, tenant="bob", session="other"))[1] > 0
    if act == "in the folder":
        tier = records.opened(folder)
        tier.scrub([info.key for info in stored.wipe_all(tier)])
        assert tier.num_bytes == bytes_under(folder)
        tier.close()
    assert traces(folder, own) == []


def test_a_process_that_only_looks_blocks_none(folder: Path) -> None:
    opened(folder).close()
    stop = threading.Event()
    looking = threading.Thread(target=lambda: [holder(folder) for _ in iter(stop.is_set, True)])
    looking.start()
    for _ in range(20):
        hold(folder).close()
    stop.set()
    looking.join()


def test_without_a_disk_what_is_in_ram_goes() -> None:
    with closing(opened(None)) as bank:
        result = {who: talk(bank, who) for who in ("mine", "other")}
        turn(bank, result["mine"].stored, session="beside")  # makes records of it
        bank.sessions.remove("", "mine")
        bank.sessions.remove("", "beside")
        assert turn(bank, result["mine"].stored, session="new").restored.reused_tokens <= len(SYSTEM)
        assert reused(on(bank, result["other"], "other")) == ("ram", len(result["other"].stored))
        bank.note_unstored(tuple(result["other"].stored), "", "for the test")
        assert bank.sessions.wipe("") == 2
        assert bank._losses._rows("SELECT * FROM lost") == []
        assert (bank.sessions.all("", 10), bank.stats.ram_bytes) == ([], 0)


def test_the_holder_of_a_folder_publishes_its_address(folder: Path) -> None:
    assert holder(folder) is None
    with closing(opened(folder)) as bank:
        assert holder(folder) == ""
        bank.sessions.announce("http://127.0.0.1:1")
        assert holder(folder) == "http://127.0.0.1:1"
        assert disk_of(bank).num_bytes == bytes_under(folder)
    assert holder(folder) is None
    with closing(opened(folder)):
        assert holder(folder) == ""
