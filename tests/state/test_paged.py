"""Pages hold the same rows as one array, and caches share a pool without sharing pages."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from tests import tiny
from tests.running import differing, read, step

from forerun.state import conversion
from forerun.state.cache import Cache
from forerun.state.conversion import extract, materialise, relayout
from forerun.state.layout import Contiguous, Paged
from forerun.state.paged import Pool
from forerun.state.store import Arena

FAMILY = tiny.family()
TOKENS = tiny.words("pages", 700)


def as_one(cache: Cache[Any]) -> Cache[Contiguous]:
    return relayout(cache, Contiguous())


@pytest.mark.parametrize("block_tokens", [16, 64, 256])
def test_prefill_into_pages_gives_the_same_state(block_tokens: int) -> None:
    paged = read(FAMILY, TOKENS, materialise(Arena(FAMILY.spec), [], None, Paged(block_tokens), 10))
    assert differing(as_one(paged), read(FAMILY, TOKENS)) == []


@pytest.mark.parametrize("rows_at_once", [96, 4096])
def test_relayout_in_the_middle_of_a_conversation_changes_nothing(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(conversion, "_ROWS_AT_ONCE", rows_at_once)
    plain, moved = read(FAMILY, TOKENS[:500]), read(FAMILY, TOKENS[:500])
    for layout in (Paged(16), Paged(64)):
        moved = as_one(relayout(moved, layout)) if layout == Paged(64) else relayout(moved, layout)
        for token in TOKENS[500:520]:
            assert mx.array_equal(step(FAMILY, plain, [token]), step(FAMILY, moved, [token]))
    assert differing(as_one(moved), plain) == []


def test_caches_share_a_pool_and_no_page() -> None:
    arena = Arena(FAMILY.spec)
    one, other = (materialise(arena, [], None, Paged(16), 10) for _ in range(2))
    for start in range(0, 600, 100):  # they grow in turn, so that their pages interleave
        read(FAMILY, TOKENS[: start + 100], one)
        read(FAMILY, TOKENS[100 : start + 200], other)
    assert bytes(extract(one, 0, 600)) == bytes(extract(read(FAMILY, TOKENS[:600]), 0, 600))
    assert bytes(extract(other, 0, 600)) == bytes(extract(read(FAMILY, TOKENS[100:700]), 0, 600))


def test_freed_pages_are_allocated_again() -> None:
    pool = Pool.empty(FAMILY.spec.attention, 16)
    first = pool.allocate(32)
    assert sorted(first) == list(range(32))
    pool.free(first[:7])
    assert sorted(pool.allocate(7)) == sorted(first[:7])
    assert pool.num_blocks == 32


def test_shrink_releases_free_pages_at_the_end() -> None:
    pool = Pool.empty(FAMILY.spec.attention, 16)
    first, second, third = pool.allocate(16), pool.allocate(8), pool.allocate(8)
    pool.free(second)
    pool.shrink()
    assert (pool.num_blocks, pool.num_free) == (32, 8)  # the last pages are in use
    pool.free(third)
    pool.shrink()
    assert (pool.num_blocks, pool.num_free) == (16, 0)
    assert all(buffer.shape[1] == 16 * 16 for buffer in pool.buffers)
    assert sorted(pool.allocate(4)) == [16, 17, 18, 19]
    pool.free([*first, 16, 17, 18, 19])
    pool.shrink()
    assert pool.num_blocks == 0


def test_shrink_keeps_the_rows_of_other_caches() -> None:
    arena = Arena(FAMILY.spec)
    stays = read(FAMILY, TOKENS[:300], materialise(arena, [], None, Paged(16), 300))
    goes = read(FAMILY, TOKENS[100:400], materialise(arena, [], None, Paged(16), 300))
    held = stays.store.num_blocks + goes.store.num_blocks
    assert arena.num_blocks[0] == held
    del goes
    arena.shrink()
    assert arena.num_blocks == (stays.store.num_blocks, 0)
    assert differing(as_one(read(FAMILY, TOKENS[:320], stays)), read(FAMILY, TOKENS[:320])) == []


def test_a_store_frees_its_pages() -> None:
    arena = Arena(FAMILY.spec)
    cache = read(FAMILY, TOKENS[:300], materialise(arena, [], None, Paged(16), 300))
    pages = cache.store.num_blocks
    del cache
    again = materialise(arena, [], None, Paged(16), 300)
    assert again.store.num_blocks == pages
    assert again.store.buffers[0].shape[1] == pages * 16


def test_a_page_must_divide_the_step_of_capacity() -> None:
    with pytest.raises(ValueError, match="does not divide 256"):
        materialise(Arena(FAMILY.spec), [], None, Paged(48), 0)


def test_pages_of_a_broken_cache_are_cleared() -> None:
    arena = Arena(FAMILY.spec)
    broken = read(FAMILY, TOKENS[:300], materialise(arena, [], None, Paged(16), 300))
    for buffer in broken.store.buffers:
        buffer[...] = float("nan")
    del broken
    assert differing(as_one(read(FAMILY, TOKENS[:100], materialise(arena, [], None, Paged(16), 300))), read(FAMILY, TOKENS[:100])) == []


def fail_evaluations(monkeypatch: pytest.MonkeyPatch, num: int) -> None:
    """Let the next `num` evaluations fail, as for lack of memory."""
    left, evaluate = [None] * num, mx.eval

    def failing(*arrays: Any) -> None:
        if left:
            left.pop()
            raise RuntimeError("out of memory")
        evaluate(*arrays)

    monkeypatch.setattr(mx, "eval", failing)


def two_caches(arena: Arena) -> list[Cache[Any]]:
    return [read(FAMILY, TOKENS[:300], materialise(arena, [], None, Paged(16), 300)) for _ in range(2)]


def fail(cache: Cache[Any]) -> None:
    """A step whose evaluation raises."""
    with pytest.raises(RuntimeError, match="out of memory"):
        step(FAMILY, cache, TOKENS[300:301])
    assert cache.is_broken


def check_lost(cache: Cache[Any]) -> None:
    assert cache.is_broken
    for use in (lambda: extract(cache, 0, 100), lambda: relayout(cache, Contiguous()), lambda: read(FAMILY, TOKENS, cache)):
        with pytest.raises(RuntimeError, match=r"lost|broken"):
            use()


def test_a_step_after_which_the_pages_cannot_be_evaluated_takes_them_all_and_no_later_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(FAMILY.spec)
    caches = two_caches(arena)
    fail_evaluations(monkeypatch, 2)
    fail(caches[0])
    check_lost(caches[1])
    assert arena.num_blocks == (0, 0)
    again = read(FAMILY, TOKENS[:300], materialise(arena, [], None, Paged(16), 300))
    caches.clear()
    assert arena.num_blocks == (again.store.num_blocks, 0)
    assert differing(as_one(again), read(FAMILY, TOKENS[:300])) == []


def test_a_step_that_fails_otherwise_breaks_its_own_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, other = two_caches(Arena(FAMILY.spec))
    fail_evaluations(monkeypatch, 1)
    fail(broken)
    assert not other.is_broken
    assert differing(as_one(read(FAMILY, TOKENS[:320], other)), read(FAMILY, TOKENS[:320])) == []


@pytest.mark.parametrize(("num_failing", "is_lost"), [(1, False), (2, True)])
def test_rows_that_cannot_be_put_break_others_only_if_the_pages_are_lost(
    num_failing: int, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, other = two_caches(Arena(FAMILY.spec))
    rows = cache.store.take(0, 10)
    fail_evaluations(monkeypatch, num_failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        cache.store.put(0, rows)
    assert other.is_broken == is_lost


def test_relayout_leaves_one_copy_even_if_the_old_cache_is_held() -> None:
    old = read(FAMILY, TOKENS[:300])
    new = relayout(old, Paged(16))
    assert old.store is new.store
