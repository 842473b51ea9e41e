"""What a request that waits has matched is there when it runs, whatever others store meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests import talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.talking import TurnResult
from tests.waiting import LIMIT_S

from forerun.bank import protection
from forerun.bank.bank import Bank
from forerun.bank.match import match
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.state.record import SEGMENT_TOKENS

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
opened, turn = partial(talking.opened, family=FAMILY), partial(talking.turn, family=FAMILY)
NUM_TOKENS = 2000
TURN_BYTES, INDEX_BYTES = NUM_TOKENS * FAMILY.spec.bytes_per_token, 2_500_000
OTHERS = 16


def in_ram(folder: Path) -> Bank:
    return opened(None, ram_limit_bytes=3 * TURN_BYTES)


def on_disk(folder: Path) -> Bank:
    return opened(folder, ram_limit_bytes=0, disk_limit_bytes=INDEX_SLACK_BYTES + INDEX_BYTES + 4 * TURN_BYTES)


@pytest.fixture(params=[in_ram, on_disk], ids=lambda made: made.__name__)
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    made: Callable[[Path], Bank] = request.param
    with closing(made(tmp_path / "bank")) as bank:
        yield bank


def stored(bank: Bank, who: object) -> TurnResult:
    """A turn of somebody, stored as far as it is."""
    result = turn(bank, tiny.words(who, NUM_TOKENS))
    assert bank.flush(LIMIT_S)
    return result


def reused(bank: Bank, first: TurnResult) -> int:
    """Tokens that a request reuses that continues the conversation."""
    return turn(bank, [*first.stored, *tiny.words("next", 20)]).restored.reused_tokens


def test_without_protection_others_evict_it(bank: Bank) -> None:
    """Else the tests below test nothing."""
    first = stored(bank, "mine")
    for who in range(OTHERS):
        stored(bank, who)
    assert reused(bank, first) == 0


def test_what_a_waiting_request_has_matched_stays(bank: Bank) -> None:
    first = stored(bank, "mine")
    bank.protect([*first.stored, *tiny.words("next", 20)], tenant="", session=None)
    for who in range(OTHERS):
        stored(bank, who)
    assert reused(bank, first) == len(first.stored)


def test_after_a_protection_has_ended_it_is_evicted(bank: Bank) -> None:
    first = stored(bank, "mine")
    protected = bank.protect(first.stored, tenant="", session=None)
    bank.unprotect(protected)
    bank.unprotect(protected)
    for who in range(OTHERS):
        stored(bank, who)
    assert reused(bank, first) == 0


def test_what_is_stored_while_the_request_waits_stays_too(bank: Bank) -> None:
    """A client that sends its next turn before the last one is stored."""
    with closing(opened(None)) as other:
        tokens = stored(other, "mine").stored
    bank.protect([*tokens, *tiny.words("next", 20)], tenant="", session=None)
    stored(bank, "before")
    first = stored(bank, "mine")
    assert first.stored == tokens
    for who in range(OTHERS):
        stored(bank, who)
    assert reused(bank, first) == len(tokens)


def test_another_tenants_prompt_protects_nothing(bank: Bank) -> None:
    first = stored(bank, "mine")
    bank.protect(first.stored, tenant="another", session=None)
    for who in range(OTHERS):
        stored(bank, who)
    assert reused(bank, first) == 0


def test_only_what_the_request_would_restore_is_protected(bank: Bank) -> None:
    """A prompt that leaves the conversation at its beginning does not need its end."""
    first = stored(bank, "mine")
    bank.protect([*first.stored[:20], *tiny.words("else", 500)], tenant="", session=None)
    for who in range(OTHERS):
        stored(bank, who)
    assert reused(bank, first) == 0


def test_eviction_asks_the_index_for_a_protected_prompt_only_where_it_meets_its_records(tmp_path: Path) -> None:
    with closing(on_disk(tmp_path / "bank")) as bank:
        asked: list[object] = []
        bank.protect([tiny.END, *tiny.words("never stored", SEGMENT_TOKENS)], tenant="", session=None)
        met = bank.protect([*tiny.words(0, SEGMENT_TOKENS), 1], tenant="", session=None)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(protection, "match", lambda tiers, hasher, chain: (asked.append(chain), match(tiers, hasher, chain))[1])
            for who in range(OTHERS):
                stored(bank, who)
        assert bank.stats.skipped == {}
        assert {id(chain) for chain in asked} == {id(met.chain)}
