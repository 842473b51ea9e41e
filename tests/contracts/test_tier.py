"""The contract of a tier (forerun.bank.tier.base), run against every tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.records import HASHER, opened, record

from forerun.bank.tier.base import Tier
from forerun.state.record import SEGMENT_TOKENS, Record

BLOCK = list(range(SEGMENT_TOKENS))
RECORDS = [
    record("segment", tokens=BLOCK),
    record("segment", tokens=[7], before=BLOCK),
    record("snapshot", tokens=[7, 8], before=BLOCK),
    record("snapshot", tokens=[]),
    record("snapshot", tokens=[2**32 - 1], num_bytes=0),
    record("segment", tokens=[5], num_bytes=1_000_000),
]


@pytest.fixture(params=[opened], ids=["disk"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    make: Callable[[Path], Tier] = request.param
    tier = make(tmp_path / "bank")
    yield tier
    tier.close()


@pytest.mark.parametrize("given", RECORDS, ids=lambda given: f"{given.info.kind}-{len(given.info.tokens)}-{given.payload.nbytes}")
def test_get_returns_what_was_put(tier: Tier, given: Record) -> None:
    tier.put(given)
    assert tier.get(given.info.key) == given


def test_payload_cannot_be_written(tier: Tier) -> None:
    tier.put(RECORDS[0])
    assert tier.get(RECORDS[0].info.key).payload.readonly


def test_get_many_keeps_the_order_asked_for(tier: Tier) -> None:
    for given in RECORDS:
        tier.put(given)
    wanted = [*reversed(RECORDS), RECORDS[2]]
    assert tier.get_many([given.info.key for given in wanted]) == wanted


def test_get_of_an_unknown_key_raises_key_error(tier: Tier) -> None:
    tier.put(RECORDS[0])
    with pytest.raises(KeyError):
        tier.get(RECORDS[1].info.key)
    with pytest.raises(KeyError):
        tier.get_many([RECORDS[0].info.key, RECORDS[1].info.key])


def test_put_of_a_present_key_changes_nothing(tier: Tier) -> None:
    tier.put(RECORDS[0])
    before = tier.num_bytes
    tier.put(RECORDS[0])
    assert tier.num_bytes == before
    assert tier.index.inventory() == [RECORDS[0].info]


def test_inventory_lists_what_get_returns(tier: Tier) -> None:
    for given in RECORDS:
        tier.put(given)
    tier.delete(RECORDS[1].info.key)
    rest = {given.info.key: given.info for given in RECORDS if given is not RECORDS[1]}
    assert {info.key: info for info in tier.index.inventory()} == rest
    assert all(tier.get(key).info == info for key, info in rest.items())


def test_delete_forgets_and_frees(tier: Tier) -> None:
    tier.put(RECORDS[0])
    before = tier.num_bytes
    tier.put(RECORDS[5])
    tier.delete(RECORDS[5].info.key)
    assert tier.num_bytes <= before + 100_000 * (tier.source == "ssd")
    with pytest.raises(KeyError):
        tier.get(RECORDS[5].info.key)


def test_delete_of_an_unknown_key_is_nothing(tier: Tier) -> None:
    tier.put(RECORDS[0])
    tier.delete(RECORDS[1].info.key)
    assert tier.index.inventory() == [RECORDS[0].info]


def test_a_deleted_record_can_be_put_again(tier: Tier) -> None:
    tier.put(RECORDS[0])
    tier.delete(RECORDS[0].info.key)
    tier.put(RECORDS[0])
    assert tier.get(RECORDS[0].info.key) == RECORDS[0]


def test_num_bytes_grows_by_the_payload_at_least(tier: Tier) -> None:
    before = tier.num_bytes
    tier.put(RECORDS[5])
    assert tier.num_bytes >= before + RECORDS[5].payload.nbytes


def test_index_knows_what_hangs_from_a_node(tier: Tier) -> None:
    for given in RECORDS:
        tier.put(given)
    tier.delete(RECORDS[3].info.key)
    assert {info.key for info in tier.index.inventory() if info.parent == HASHER.root} == {RECORDS[i].info.key for i in (0, 4, 5)}


def test_threads_may_work_at_once(tier: Tier) -> None:
    own = [[record(tokens=[thread, i]) for i in range(8)] for thread in range(4)]

    def work(mine: list[Record]) -> None:
        for given in mine:
            tier.put(given)
            tier.put(own[0][0])
            assert tier.get(given.info.key) == given
        for given in mine[::2]:
            tier.delete(given.info.key)

    with ThreadPoolExecutor(len(own)) as threads:
        list(threads.map(work, own))
    left = {given.info.key for mine in own for given in mine[1::2]}
    assert left <= {info.key for info in tier.index.inventory()} <= left | {own[0][0].info.key}
