"""Live state under exact numerics: the same bits as one token at a time, for any split, other sequences in the pass, or rejected rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from tests import tiny
from tests.running import differing, empty, logits, read, snapshots, step

from forerun.kernels.numerics import EXACT
from forerun.state.cache import Cache, lend
from forerun.state.contiguous import CAPACITY_STEP_TOKENS, capacity_for
from forerun.state.layout import Contiguous, Paged
from forerun.state.store import Arena

FAMILY = tiny.family()
TOKENS = tiny.words("state", 560)


def stepped(tokens: Sequence[int]) -> Cache[Any]:
    """The cache after these tokens, one step each."""
    cache = empty(FAMILY)
    for token in tokens:
        step(FAMILY, cache, [token])
    return cache


def test_prefill_in_chunks_equals_single_steps() -> None:
    assert differing(read(FAMILY, TOKENS[:270]), stepped(TOKENS[:270])) == []


def test_a_snapshot_by_replay_is_the_state_at_its_position() -> None:
    positions = [1, 2, 63, 64, 65, 299, 511, 512, 513, 559]
    whole, found = snapshots(FAMILY, TOKENS, positions)
    assert [snapshot.position for snapshot in found] == positions
    assert differing(whole, read(FAMILY, TOKENS)) == []  # snapshots split no chunk and change nothing
    for snapshot in found:
        expected = read(FAMILY, TOKENS[: snapshot.position]).snapshot()
        assert all(mx.array_equal(a, b) for a, b in zip(snapshot.arrays(), expected.arrays(), strict=True)), snapshot.position


@pytest.mark.parametrize("position", [99, 100, 105])
def test_a_snapshot_outside_the_new_rows_is_refused(position: int) -> None:
    cache = read(FAMILY, TOKENS[:100])
    with lend([cache], EXACT) as view:
        hidden = FAMILY.forward(mx.array(TOKENS[100:104]), [4], view)
        with pytest.raises(ValueError, match=rf"position {position} is not inside the new rows 100\.\.104"):
            view.snapshot(0, position, hidden)


@pytest.mark.parametrize("kept", range(7))
def test_keeping_some_rows_equals_prefill_of_these_alone(kept: int) -> None:
    cache = read(FAMILY, TOKENS[:254])  # the rows cross the end of the first block and of the first capacity
    step(FAMILY, cache, TOKENS[254:260], keep=kept)
    expected = read(FAMILY, TOKENS[: 254 + kept])
    assert differing(cache, expected) == []
    assert mx.array_equal(step(FAMILY, cache, [7, 8]), step(FAMILY, expected, [7, 8]))
    assert differing(cache, expected) == []


def test_verified_rows_have_the_logits_of_single_steps() -> None:
    whole, single = read(FAMILY, TOKENS[:300]), read(FAMILY, TOKENS[:300])
    rows = step(FAMILY, whole, TOKENS[300:308])
    assert mx.array_equal(rows, mx.concatenate([step(FAMILY, single, [token]) for token in TOKENS[300:308]]))


def test_other_sequences_in_the_pass_change_nothing() -> None:
    lengths, spans, kept = [5, 300, 0, 254], [3, 1, 4, 6], [2, 1, 0, 6]
    together = [read(FAMILY, tiny.words(i, n)) if n else empty(FAMILY) for i, n in enumerate(lengths)]
    alone = [read(FAMILY, tiny.words(i, n)) if n else empty(FAMILY) for i, n in enumerate(lengths)]
    new = [tiny.words(10 + i, n) for i, n in enumerate(spans)]
    found = batched(together, new, kept)
    for cache, other, tokens, n, rows in zip(together, alone, new, kept, found, strict=True):
        assert mx.array_equal(rows, step(FAMILY, other, tokens, keep=n))
        assert differing(cache, other) == []


def ids(tokens: Iterable[list[int]]) -> mx.array:
    return mx.array([token for own in tokens for token in own])


def batched(caches: list[Cache[Any]], tokens: list[list[int]], kept: list[int]) -> list[mx.array]:
    """Logits of each sequence's rows, from one forward for all. The first `kept` of each become state, draft rows too."""
    spans, before = [len(t) for t in tokens], [c.hidden for c in caches]
    stops = [sum(spans[: i + 1]) for i in range(len(spans))][:-1]
    with lend(caches, EXACT) as view:
        hidden = FAMILY.forward(ids(tokens), spans, view)
        view.keep(kept, hidden)
        parts = mx.split(hidden, stops)
        primed = [mx.concatenate([b[None], part[: n - 1]]) for b, part, n in zip(before, parts, kept, strict=True) if n]
        FAMILY.draft(mx.concatenate(primed), ids(t[:n] for t, n in zip(tokens, kept, strict=True)), kept, view)
        view.keep_draft(kept)
        mx.eval(hidden, [c.arrays() for c in caches])
    return list(mx.split(FAMILY.head(hidden), stops))


def test_growth_changes_nothing() -> None:
    grown, roomy = empty(FAMILY), empty(FAMILY, 5 * CAPACITY_STEP_TOKENS)
    capacities = set()
    for start in range(0, 1200, 100):
        tokens = tiny.words(start, 100)
        assert mx.array_equal(step(FAMILY, grown, tokens), step(FAMILY, roomy, tokens))
        capacities.add(grown.store.capacity)
    assert len(capacities) > 3
    assert all(capacity % CAPACITY_STEP_TOKENS == 0 for capacity in capacities)
    assert roomy.store.capacity == 5 * CAPACITY_STEP_TOKENS
    assert differing(grown, roomy) == []


def test_a_step_copies_no_buffer() -> None:
    cache = empty(FAMILY, 1 << 16)
    step(FAMILY, cache, TOKENS[:100])
    mx.synchronize()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    step(FAMILY, cache, [5])
    assert mx.get_peak_memory() - before < cache.store.buffers[0].nbytes / 2


def test_a_snapshot_is_valid_while_the_cache_continues() -> None:
    cache = read(FAMILY, TOKENS[:100])
    snapshot = cache.snapshot()
    step(FAMILY, cache, TOKENS[100:150])
    cache.truncate(snapshot)
    assert differing(cache, read(FAMILY, TOKENS[:100])) == []
    other = TOKENS[:100] + tiny.words("other", 60)
    assert differing(read(FAMILY, other, cache), read(FAMILY, other)) == []


def test_a_lent_cache_cannot_be_lent_again() -> None:
    cache = empty(FAMILY)
    with lend([cache], EXACT), pytest.raises(RuntimeError, match="already lent"), lend([cache], EXACT):
        pass
    assert not cache.is_lent


def test_a_cache_cannot_be_lent_twice_at_once() -> None:
    cache = empty(FAMILY)
    with pytest.raises(RuntimeError, match="already lent"), lend([cache, cache], EXACT):
        pass
    with lend([cache], EXACT):
        pass  # refused is not broken


def test_a_refused_lend_leaves_the_other_caches_free() -> None:
    one, other = empty(FAMILY), empty(FAMILY)
    with lend([other], EXACT), pytest.raises(RuntimeError), lend([one, other], EXACT):
        pass
    with lend([one, other], EXACT):
        pass


def test_a_failed_step_breaks_its_caches_for_good() -> None:
    one, other = empty(FAMILY), empty(FAMILY)
    with pytest.raises(ZeroDivisionError), lend([one, other], EXACT):
        raise ZeroDivisionError
    for cache in (one, other):
        with pytest.raises(RuntimeError, match="broken by a failed step"), lend([cache], EXACT):
            pass


def test_rows_beyond_the_length_are_finite_after_nan_was_in_memory() -> None:
    nan = [mx.full((tiny.KV_HEADS, 1024, tiny.HEAD_DIM), mx.nan) for _ in range(64)]
    mx.eval(nan)
    del nan  # MLX allocates these buffers again
    cache = read(FAMILY, TOKENS[:100], empty(FAMILY, 900))
    assert all(bool(mx.all(mx.isfinite(array))) for array in cache.store.buffers)
    step(FAMILY, cache, tiny.words(0, 1000))  # grows
    assert all(bool(mx.all(mx.isfinite(array))) for array in cache.store.buffers)


def test_scratch_rows_of_a_rejected_draft_do_not_matter() -> None:
    cache, clean = read(FAMILY, TOKENS[:300]), read(FAMILY, TOKENS[:300])
    step(FAMILY, cache, tiny.words("rejected", 40), keep=0)
    with lend([cache], EXACT) as view:
        FAMILY.draft(mx.full((3, tiny.HIDDEN), 1e3), mx.array([1, 2, 3]), [3], view)
        view.keep_draft([0])
    assert mx.array_equal(logits(FAMILY, cache), logits(FAMILY, clean))
    assert mx.array_equal(step(FAMILY, cache, [9]), step(FAMILY, clean, [9]))
    assert differing(cache, clean) == []


def test_the_draft_layers_do_not_see_position_0() -> None:
    cache, other = read(FAMILY, TOKENS[:20]), read(FAMILY, TOKENS[:20])
    for buffer in other.store.buffers[-2:]:
        buffer[:, 0] = 3.0
    first, second = (drafted(each) for each in (cache, other))
    assert mx.array_equal(first, second)
    other.store.buffers[-1][:, 1] = 3.0
    assert not mx.array_equal(first, drafted(other))


def drafted(cache: Cache[Any]) -> mx.array:
    with lend([cache], EXACT) as view:
        hidden = FAMILY.draft(cache.hidden[None], mx.array([5]), [1], view)
        view.keep_draft([0])
    return hidden


def test_nothing_is_kept_of_a_draft_pass() -> None:
    cache = read(FAMILY, TOKENS[:20])
    with lend([cache], EXACT) as view:
        hidden = FAMILY.forward(mx.array([5]), [1], view)
        FAMILY.draft(cache.hidden[None], mx.array([5]), [1], view)
        with pytest.raises(RuntimeError, match="draft layers"):
            view.keep([1], hidden)


@pytest.mark.parametrize("layout", [Contiguous(), Paged(256)], ids=str)
def test_growth_allocates_one_layer_at_a_time(layout: Any) -> None:
    """The old array of a layer is freed before the next layer grows: memory never holds the conversation twice."""
    store = Arena(FAMILY.spec).store(layout, 1 << 16)
    rows, old_bytes, size = mx.ones((tiny.KV_HEADS, 100, tiny.HEAD_DIM)), store.buffers[0].nbytes, store.buffers[0].shape[1]
    store.put(0, [rows] * len(store.buffers))
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    store.reserve(size + 1)
    mx.eval(store.buffers)
    added = sum(a.nbytes for a in store.buffers) - len(store.buffers) * old_bytes
    grown = capacity_for(size + 1 if isinstance(layout, Contiguous) else size * 5 // 4)  # a pool grows by a quarter at least
    assert added == pytest.approx(len(store.buffers) * old_bytes * (grown - size) / size, rel=0.04)
    assert mx.get_active_memory() - before < added * 1.01
    assert mx.get_peak_memory() - before < added + 1.3 * old_bytes
    assert all(mx.array_equal(part, rows) for part in store.take(0, 100))


def test_a_grown_cache_has_the_capacity_of_a_new_one_of_its_length() -> None:
    """Otherwise a cache from SSD would decode faster than one from RAM: a compiled step attends over the capacity."""
    grown = empty(FAMILY)
    for tokens in range(100, 6000, 700):
        grown.store.reserve(tokens)
        assert grown.store.capacity == empty(FAMILY, tokens).store.capacity
        assert tokens <= grown.store.capacity <= max(512, 1.125 * tokens + CAPACITY_STEP_TOKENS)
