"""The reason of a miss: its kind, and the first token that differs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests import talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.records import path_of
from tests.talking import IDENTITY
from tests.waiting import LIMIT_S

from forerun.bank.bank import Bank
from forerun.bank.miss_reason import SHOWN_TOKENS, MissReason
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.state.layout import Contiguous
from forerun.state.record import SEGMENT_TOKENS, Identity

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
opened, turn = partial(talking.opened, family=FAMILY), partial(talking.turn, family=FAMILY)
FIRST = [*tiny.words("system", 30), tiny.END, *tiny.words("question", 100)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bank"


@pytest.fixture
def bank(folder: Path) -> Iterator[Bank]:
    with closing(opened(folder)) as bank:
        yield bank


def reason(bank: Bank, prompt: list[int], tenant: str = "") -> MissReason:
    return bank.restore(prompt, tenant=tenant, session=None, layout=Contiguous(), headroom_tokens=0).miss_reason


def stored(folder: Path, prompt: list[int], **other: Any) -> list[int]:
    """What is stored of a turn by a bank that is closed again."""
    with closing(opened(folder, **other)) as bank:
        result = turn(bank, prompt).stored
        assert bank.flush(LIMIT_S)
    return result


def test_what_begins_like_nothing_is_new(bank: Bank) -> None:
    assert reason(bank, FIRST) == MissReason("new", "no stored conversation begins like this prompt", 0, ())


@pytest.mark.parametrize("variant", ["ram", "ssd"])
def test_a_conversation_that_continues_from_its_end_missed_nothing(variant: str, folder: Path) -> None:
    with closing(opened(folder)) as bank:
        result = turn(bank, FIRST).stored
        assert bank.flush(LIMIT_S)
        if variant == "ram":
            assert reason(bank, result + tiny.words(2, 20)).kind == ""
    with closing(opened(folder)) as bank:
        assert reason(bank, result + tiny.words(2, 20)) == MissReason("", "", len(result), ())


@pytest.mark.parametrize("at", [40, SEGMENT_TOKENS + 60])
@pytest.mark.parametrize("variant", ["ram", "ssd"])
def test_an_edit_is_found_to_the_token(at: int, variant: str, folder: Path) -> None:
    result = stored(folder, FIRST + tiny.words("long", SEGMENT_TOKENS))
    edited = [*result[:at], tiny.END, *tiny.words("edited", 50)]
    with closing(opened(folder)) as bank:
        if variant == "ram":
            result = turn(bank, result).stored
        found = reason(bank, edited)
    assert (found.kind, found.shared_tokens) == ("differs", at)
    assert found.stored == tuple(result[at : at + SHOWN_TOKENS])
    assert f"diverges after {at:,} tokens" in found.text


def test_leaving_between_snapshots_is_reported(bank: Bank) -> None:
    result = turn(bank, FIRST).stored
    assert reason(bank, result[:60]).kind == "no snapshot"
    assert reason(bank, result[:60]).text == "the prompt is stored up to token 60; the last snapshot before that is at 31"


def test_what_was_evicted_from_disk_is_called_so(folder: Path) -> None:
    free_bytes = INDEX_SLACK_BYTES + 5 * SEGMENT_TOKENS * FAMILY.spec.bytes_per_token
    result = stored(folder, tiny.words("mine", SEGMENT_TOKENS), disk_limit_bytes=free_bytes)
    for other in range(3):
        stored(folder, tiny.words(other, 3 * SEGMENT_TOKENS), disk_limit_bytes=free_bytes)
    with closing(opened(folder)) as bank:
        found = reason(bank, result + tiny.words(2, 20))
        assert (found.kind, "the disk quota was reached" in found.text) == ("evicted", True)


def test_what_was_evicted_from_ram_is_called_so() -> None:
    with closing(opened(None, ram_limit_bytes=0)) as bank:
        result = turn(bank, FIRST).stored
        found = reason(bank, result + tiny.words(2, 20))
        assert (found.kind, "RAM was short" in found.text) == ("evicted", True)


def test_what_was_never_stored_is_reported_with_the_reason(folder: Path) -> None:
    with closing(opened(folder)) as bank:
        assert bank._disk is not None
        bank._disk.daily_limit_bytes = 0
        result = turn(bank, FIRST).stored
        assert bank.flush(LIMIT_S)
    with closing(opened(folder)) as bank:
        found = reason(bank, result)
        assert (found.kind, "no disk capacity: daily write budget" in found.text) == ("not stored", True)


def test_damage_is_reported_at_once_and_later(folder: Path) -> None:
    result = stored(folder, FIRST)
    with closing(opened(folder)) as bank:
        assert bank._disk is not None
        for info in bank._disk.index.inventory():
            path_of(folder, info.key).write_bytes(b"damaged")
        for _ in range(2):
            assert reason(bank, result).kind == "damaged"


def test_state_of_another_identity_names_what_differs(folder: Path) -> None:
    result = stored(folder, FIRST)
    with closing(opened(folder, identity=replace(IDENTITY, template="other", weights="other"))) as bank:
        found = reason(bank, result)
        assert (found.kind, found.text) == ("identity", "it is stored under another identity: weights and template differ")
        assert reason(bank, result, tenant="stranger").kind == "new"


OTHERS = {
    "nearest first": [("template", 130), ("weights", 60)],
    "nearest last": [("weights", 60), ("template", 130)],
    "nearest of many": [("template", 130), *((f"weights {number}", 60) for number in range(8))],
    "of equals the latest": [("weights", 130), ("template", 130)],
}


def under(name: str) -> Identity:
    """An identity that differs in the field that the name begins with."""
    return replace(IDENTITY, **{name.split()[0]: f"other {name}"})


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_of_several_identities_the_one_that_holds_most_of_the_prompt_is_named(others: list[tuple[str, int]], folder: Path) -> None:
    for name, length in others:
        stored(folder, [*FIRST[:length], *tiny.words(name, 20)], identity=under(name))
    with closing(opened(folder)) as bank:
        found = reason(bank, FIRST)
        assert (found.kind, found.text) == ("identity", "it is stored under another identity: template differs")


def test_another_identity_that_holds_more_than_this_one_is_named(folder: Path) -> None:
    own = stored(folder, [*FIRST[:60], *tiny.words("own", 20)])
    stored(folder, FIRST, identity=under("numerics"))
    with closing(opened(folder)) as bank:
        found = reason(bank, FIRST)
        assert (found.kind, found.shared_tokens, found.stored) == ("identity", 60, tuple(own[60 : 60 + SHOWN_TOKENS]))
        assert "more of it is stored under another identity: numerics differs" in found.text
        longer = turn(bank, FIRST).stored
        assert reason(bank, [*longer, 1]).kind == ""


def test_an_index_that_fails_is_one_more_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = stored(folder, FIRST)
    with closing(opened(folder)) as bank:
        assert bank._disk is not None
        bank._disk.index._connection.execute("DROP TABLE lost")
        restored = bank.restore(result, tenant="", session=None, layout=Contiguous(), headroom_tokens=0)
        assert (restored.reused_tokens, restored.miss_reason.kind) == (len(result), "failed")
        assert "no such table" in restored.miss_reason.text
