"""A fork has the state of a snapshot bit for bit, and neither it nor its origin sees what the other does afterwards."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.fake_family import FakeFamily, scattered
from tests.running import differing_state, greedy, read, step

from forerun.decode.prefill import prefill
from forerun.models.base import Family
from forerun.state import contiguous
from forerun.state.cache import Cache, Snapshot, lend
from forerun.state.conversion import fork, materialise, relayout
from forerun.state.layout import Contiguous, Layout, Paged
from forerun.state.store import Arena

FAMILY = tiny.family()
FAKE = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
TOKENS, MORE = tiny.words("fork", 700), tiny.words("more", 700)
LAYOUTS: list[Any] = [Contiguous(), Paged(16), Paged(64)]


def prefilled(
    arena: Arena, layout: Any, tokens: list[int], positions: Collection[int] = (), family: Family = FAMILY
) -> tuple[Cache[Any], dict[int, Snapshot]]:
    """A cache of these tokens, and its snapshots at `positions` and at its end."""
    cache, found = materialise(arena, [], None, layout, 10), dict[int, Snapshot]()
    for new in prefill(family, cache, tokens, {*positions, len(tokens)}):
        found |= {snapshot.position: snapshot for snapshot in new}
    return cache, found


@pytest.mark.parametrize("position", [1, 64, 100, 512, 640])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("origin_layout", LAYOUTS, ids=str)
def test_a_fork_is_the_state_at_its_snapshot_and_both_continue_on_their_own(origin_layout: Any, layout: Any, position: int) -> None:
    origin, found = prefilled(Arena(FAMILY.spec), origin_layout, TOKENS[:640], [position])
    other = fork(origin, found[position], layout, 30)
    assert (other.layout, other.store.layout, origin.layout) == (layout, layout, origin_layout)
    assert differing_state(other, read(FAMILY, TOKENS[:position])) == []
    read(FAMILY, [*TOKENS[:position], *MORE[:90]], other)
    read(FAMILY, [*TOKENS[:640], *MORE[90:120]], origin)
    assert differing_state(other, read(FAMILY, [*TOKENS[:position], *MORE[:90]])) == []
    assert differing_state(origin, read(FAMILY, [*TOKENS[:640], *MORE[90:120]])) == []
    assert greedy(FAMILY, other, 5) == greedy(FAMILY, read(FAMILY, [*TOKENS[:position], *MORE[:90]]), 5)


@pytest.mark.parametrize("position", [96, 100, 111])
def test_an_origin_that_is_cut_off_leaves_its_fork_as_it_is(position: int) -> None:
    """Rows below the fork's length are written again: in pages that it shares no more."""
    origin, found = prefilled(Arena(FAMILY.spec), Paged(16), TOKENS[:300], [position, 250])
    other = fork(origin, found[250], Paged(16), 0)
    origin.truncate(found[position])
    read(FAMILY, [*TOKENS[:position], *MORE[:200]], origin)
    assert differing_state(origin, read(FAMILY, [*TOKENS[:position], *MORE[:200]])) == []
    assert differing_state(other, read(FAMILY, TOKENS[:250])) == []


def test_full_pages_of_one_pool_are_shared_and_free_when_nobody_holds_them() -> None:
    arena = Arena(FAMILY.spec)
    origin, found = prefilled(arena, Paged(16), TOKENS[:500], [300])
    alone_bytes, (used, _) = origin.store.num_bytes, arena.num_blocks
    other = fork(origin, found[300], Paged(16), 0)
    assert arena.num_blocks[0] == used + other.store.num_blocks - 300 // 16
    shared_bytes = 300 // 16 * (alone_bytes // origin.store.num_blocks)
    assert origin.store.num_bytes == alone_bytes - shared_bytes // 2
    del origin
    assert arena.num_blocks[0] == other.store.num_blocks
    assert differing_state(other, read(FAMILY, TOKENS[:300])) == []
    del other
    assert arena.num_blocks[0] == 0
    arena.shrink()
    assert arena.num_blocks == (0, 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_fork_copies_no_other_rows_and_all_of_its_own_are_finite(layout: Any) -> None:
    """What lies beyond the fork's length may be anything in the origin, and a masked NaN leaks."""
    origin, found = prefilled(Arena(FAMILY.spec), layout, TOKENS[:300], [205])
    rows = origin.store.rows(205, 300)
    origin.store.put(205, [mx.full(part.shape, float("nan")) for part in rows])
    other = fork(origin, found[205], layout, 100)
    assert all(bool(mx.all(mx.isfinite(rows))) for rows in other.store.take(0, other.store.capacity))


def test_a_fork_of_arrays_holds_one_more_array_at_most_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    origin, found = prefilled(Arena(FAMILY.spec), Contiguous(), TOKENS[:300])
    evaluated: list[int] = []
    monkeypatch.setattr(contiguous.mx, "eval", lambda *arrays, call=mx.eval: (evaluated.append(len(arrays)), call(*arrays)))
    fork(origin, found[300], Contiguous(), 0)
    assert evaluated == [1] * len(origin.store.buffers)


def test_the_origin_is_written_in_place_after_a_fork() -> None:
    """A reference left behind would have every later write copy the whole array."""
    origin, found = prefilled(Arena(FAMILY.spec), Contiguous(), TOKENS[:300])
    other = fork(origin, found[300], Contiguous(), 0)
    mx.reset_peak_memory()
    before_bytes = mx.get_active_memory()
    step(FAMILY, origin, [5])
    assert mx.get_peak_memory() - before_bytes < min(a.nbytes for a in origin.store.buffers)
    assert other.length == 300


def _paused(cache: Cache[Any], tokens: list[int]) -> Iterator[None]:
    """A prefill that pauses after each layer's write, while the cache is lent."""
    with lend([cache], FAMILY.numerics) as view:
        positions = view.begin([len(tokens)])
        for layer, of in enumerate(FAMILY.spec.layers):
            if hasattr(of, "kv_heads"):
                rows = mx.full((positions.shape[0], of.kv_heads, of.head_dim), 7.0 + layer)
                view.attend(layer, mx.concatenate([rows] * (tiny.HEADS // tiny.KV_HEADS), axis=1), rows, rows)
                yield


@pytest.mark.parametrize("origin_layout", LAYOUTS, ids=str)
def test_a_lent_cache_is_forked_at_what_it_held_before_the_pass(origin_layout: Any) -> None:
    origin, found = prefilled(Arena(FAMILY.spec), origin_layout, TOKENS[:512], [200])
    pauses = 0
    for _ in _paused(origin, MORE[:100]):
        assert origin.is_lent
        for position in (200, 512):
            other = fork(origin, found[position], Contiguous(), 10)
            assert differing_state(other, read(FAMILY, TOKENS[:position])) == []
            assert differing_state(read(FAMILY, [*TOKENS[:position], 5], other), read(FAMILY, [*TOKENS[:position], 5])) == []
        pauses += 1
    assert pauses == len([of for of in FAMILY.spec.layers if hasattr(of, "kv_heads")])


def test_what_has_no_valid_rows_is_not_forked() -> None:
    origin, found = prefilled(Arena(FAMILY.spec), Contiguous(), TOKENS[:100])
    origin.draft_length = 90
    with pytest.raises(ValueError, match=r"a snapshot at 100 is not within the 100 tokens \(90 drafted\) of the cache"):
        fork(origin, found[100], Contiguous(), 0)
    moved = relayout(origin, Paged(16))
    with pytest.raises(RuntimeError, match="is broken"):
        fork(origin, found[100], Contiguous(), 0)
    moved.draft_length, buffers, moved.store.buffers = 100, moved.store.buffers, []
    with pytest.raises(RuntimeError, match="in use"):
        fork(moved, found[100], Contiguous(), 0)
    moved.store.buffers = buffers
    assert differing_state(fork(moved, found[100], Contiguous(), 0), read(FAMILY, TOKENS[:100])) == []


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_fork_that_fails_holds_no_memory_and_leaves_the_origin(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(FAMILY.spec)
    origin, found = prefilled(arena, layout, TOKENS[:300], [205])
    used = arena.num_blocks[0]

    def failing(*arrays: Any) -> None:
        raise RuntimeError("Unable to allocate")

    with monkeypatch.context() as patched:
        patched.setattr(mx, "eval", failing)
        with pytest.raises(RuntimeError, match="Unable to allocate"):
            fork(origin, found[205], layout, 2000)
    assert arena.num_blocks[0] == used
    assert differing_state(read(FAMILY, TOKENS[:320], origin), read(FAMILY, TOKENS[:320])) == []


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_tree_of_forks_holds_what_each_branch_computed(data: st.DataObject) -> None:
    """Forks of forks, cut off, continued and dropped in any order, in pages of one pool; the family checks its own rows."""
    arena, layout = Arena(FAKE.spec), Paged(16)
    first, found = prefilled(arena, layout, TOKENS[:70], [1, 16, 33, 48], FAKE)
    branches = [(first, TOKENS[:70], found)]
    for number in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(branches) - 1))
        cache, tokens, found = branches[at]
        position = data.draw(st.sampled_from(sorted(found)))
        deed = data.draw(st.sampled_from(["fork", "cut", "continue", "drop"]))
        if deed == "fork":
            branches.append((fork(cache, found[position], layout, 8), tokens[:position], {p: s for p, s in found.items() if p <= position}))
        elif deed == "cut":
            cache.truncate(found[position])
            branches[at] = cache, tokens[:position], {p: s for p, s in found.items() if p <= position}
        elif deed == "continue":
            tokens = [*tokens, *tiny.words(number, data.draw(st.integers(1, 40)))]
            read(FAKE, tokens, cache)
            branches[at] = cache, tokens, found | {len(tokens): cache.snapshot()}
        elif len(branches) > 1:
            del branches[at], cache
    for cache, tokens, _ in branches:
        assert differing_state(cache, read(FAKE, tokens)) == []
        greedy(FAKE, cache, 2)
    del cache, first
    branches.clear()
    assert arena.num_blocks[0] == 0
