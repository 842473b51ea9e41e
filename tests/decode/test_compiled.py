"""Compiled steps give the bits of eager ones, in every layout, over several capacities; each is traced once per capacity, and counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import mlx.core as mx
import pytest
from tests import tiny
from tests.fake_family import FakeFamily, scattered
from tests.running import differing, read

from forerun.decode.compiled import NEW_BATCH_STEPS, StepTable
from forerun.decode.warm_up import warm_up
from forerun.state.cache import Cache, lend
from forerun.state.contiguous import capacity_for
from forerun.state.conversion import relayout, relayout_as_chosen
from forerun.state.layout import Contiguous, Layout, Paged
from forerun.state.store import Arena

FAMILY = tiny.family()
TOKENS = tiny.words("compiled", 1600)
WIDTHS = (1, 4, 2, 1, 3, 1, 8, 1)


def decode(cache: Cache[Any], steps: StepTable, widths: tuple[int, ...], start: int) -> list[mx.array]:
    """Hidden vectors of the target and of the draft for passes of these widths; of each all rows but one become state, at least one."""
    found = []
    for rows in widths:
        before, kept = cache.hidden, max(1, rows - 1)
        tokens = mx.array(TOKENS[start : start + rows], dtype=mx.int32)
        with lend([cache], steps.family.numerics) as view:
            hidden = steps.forward(tokens, [cache], [tokens.shape[0]], view)
            view.keep([kept], hidden)
            drafted = steps.draft(mx.concatenate([before[None], hidden[: kept - 1]]), tokens[:kept], [cache], [kept], view)
            view.keep_draft([kept])
            mx.eval(hidden, drafted, cache.arrays())
        found += [hidden, drafted]
        start += kept
    return found


@pytest.mark.parametrize("layout", [Contiguous(), Paged(16), Paged(256)], ids=str)
def test_compiled_is_eager_bit_for_bit(layout: Layout) -> None:
    expected_cache, cache = read(FAMILY, TOKENS[:250]), relayout_as_chosen(read(FAMILY, TOKENS[:250]), layout)
    expected = decode(expected_cache, StepTable(FAMILY, eager_reason="test"), WIDTHS * 2, 250)  # past 256 and so past one capacity
    found = decode(cache, StepTable(FAMILY, eager_reason=""), WIDTHS * 2, 250)
    assert all(mx.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert differing(relayout_as_chosen(cache, Contiguous()), expected_cache) == []


def test_a_step_is_traced_once_per_capacity() -> None:
    steps, cache = StepTable(FAMILY, eager_reason=""), read(FAMILY, TOKENS[:100])
    decode(cache, steps, (1,) * 100, 100)
    assert steps.num_traces() == 2
    assert steps.counts() == Counter(compiled=200)


def test_eager_steps_have_a_reason_and_are_counted() -> None:
    steps, cache = StepTable(FAMILY, eager_reason="requested"), read(FAMILY, TOKENS[:100])
    decode(cache, steps, (1, 1), 100)
    assert steps.counts() == Counter(requested=4)
    wide = StepTable(FAMILY, eager_reason="")
    decode(read(FAMILY, TOKENS[:100]), wide, (9,), 100)
    assert wide.counts() == Counter(width=1, compiled=1)


def test_a_compiled_step_copies_no_buffer() -> None:
    steps, cache = StepTable(FAMILY, eager_reason=""), relayout(read(FAMILY, TOKENS[:100]), Contiguous())
    cache.store.reserve(1 << 16)
    decode(cache, steps, (1, 1), 100)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    with lend([cache], FAMILY.numerics) as view:
        hidden = steps.forward(mx.array([5]), [cache], [1], view)
        view.keep([0], hidden)
        mx.eval(hidden, cache.arrays())
    # Attention over the whole capacity makes scores for every key; a copy of keys or values would be larger.
    assert mx.get_peak_memory() - before < cache.store.buffers[0].nbytes


def test_a_failed_step_restores_the_buffers() -> None:
    steps, cache = StepTable(FAMILY, eager_reason=""), read(FAMILY, TOKENS[:100])
    with pytest.raises(ValueError), lend([cache], FAMILY.numerics) as view:  # noqa: PT011 - MLX raises it for a token that is a matrix
        steps.forward(mx.zeros((2, 2, 2), dtype=mx.int32), [cache], [2], view)
    assert len(cache.store.buffers) == 2 * len(FAMILY.spec.attention)
    assert cache.is_broken


def test_after_warm_up_no_step_is_traced_again() -> None:
    steps = StepTable(FAMILY, eager_reason="")
    warm_up(steps, Contiguous(), 2, lambda doing, done_frac: None)
    traced = steps.num_traces()
    decode(read(FAMILY, TOKENS[:100]), steps, (1, 2, 3), 100)
    assert steps.num_traces() == traced


def test_warm_up_prefills_a_prompt_and_runs_rounds_of_each_depth() -> None:
    """The first request would otherwise wait for them: on a GPU, kernels of many rows and of sampling."""
    family, rows = FakeFamily(lambda position, token, total: 5, tiny.VOCAB), list[int]()
    family.before_pass = rows.append
    warm_up(StepTable(family, eager_reason="test"), Paged(64), 2, lambda doing, done_frac: None)
    assert rows == [1, 2, 3, 4, 64, *[1, 2, 3] * 3]  # 4: three tokens that a grammar determines


def test_changing_layouts_and_capacities_changes_no_logits() -> None:
    """Compiled, with repeated changes of layout while it grows: hidden vectors and drafts equal eager steps in one array bit for bit."""
    plain, moved, decoded = read(FAMILY, TOKENS[:100]), read(FAMILY, TOKENS[:100]), TOKENS[:100]
    eager, compiled = StepTable(FAMILY, eager_reason="test"), StepTable(FAMILY, eager_reason="")
    capacities = set()
    for start, layout in zip(range(100, 1600, 300), (Paged(16), Contiguous(), Paged(256), Paged(64), Contiguous()), strict=True):
        decoded = decoded + TOKENS[start : start + 300]
        plain, moved = read(FAMILY, decoded, plain), read(FAMILY, decoded, relayout_as_chosen(moved, layout))
        expected, found = decode(plain, eager, (4, 1, 1), start), decode(moved, compiled, (4, 1, 1), start)
        assert all(mx.array_equal(a, b) for a, b in zip(found, expected, strict=True))
        decoded = decoded + TOKENS[:5]  # whatever was decoded: only the number counts
        capacities.add(moved.store.capacity)
    assert len(capacities) > 3


@pytest.mark.parametrize("layout", [Contiguous(), Paged(16), Paged(256)], ids=str)
def test_a_growing_conversation_is_traced_once_per_capacity_of_the_series(layout: Layout) -> None:
    family, tokens = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB), tiny.words("growing", 4100)
    steps, cache = StepTable(family, eager_reason=""), relayout_as_chosen(read(family, tokens[:100]), layout)
    while cache.length < 4000:
        cache = read(family, tokens[: cache.length + 49], cache)
        decode(cache, steps, (1,), 0)
    assert cache.layout == layout
    assert steps.num_traces() == 2 * len({capacity_for(tokens) for tokens in range(100, 4001)})


def test_a_thousand_steps_trace_nothing_again() -> None:
    family = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)  # for speed: traces depend on the cache alone
    steps, cache = StepTable(family, eager_reason=""), read(family, TOKENS[:100])
    cache.store.reserve(2048)
    decode(cache, steps, (1,), 100)
    traced = steps.num_traces()
    for _ in range(4):
        decode(cache, steps, (1,) * 250, 100)
    assert steps.num_traces() == traced == 2
    assert steps.counts() == Counter(compiled=2002)


@pytest.mark.parametrize("width", [1, 3])
def test_a_batch_in_one_pool_is_compiled_once_it_has_lasted_and_has_the_same_bits(width: int) -> None:
    arena, steps = Arena(FAMILY.spec), StepTable(FAMILY, eager_reason="")
    together, alone = ([in_pages(arena, n) for n in (30, 300, 100)] for _ in range(2))
    for num in range(NEW_BATCH_STEPS + 4):
        tokens = mx.array([(7 * num + i) % tiny.VOCAB for i in range(3 * width)], dtype=mx.int32)
        with lend(together, FAMILY.numerics) as view:
            hidden = steps.forward(tokens, together, [width] * 3, view)
            view.keep([width, 1, width], hidden)
            drafted = steps.draft(hidden, tokens, together, [width] * 3, view)
            view.keep_draft([width, 1, width])
        for j, cache in enumerate(alone):
            with lend([cache], FAMILY.numerics) as view:
                own = FAMILY.forward(tokens[j * width : (j + 1) * width], [width], view)
                view.keep([1 if j == 1 else width], own)
                own_drafted = FAMILY.draft(own, tokens[j * width : (j + 1) * width], [width], view)
                view.keep_draft([1 if j == 1 else width])
            assert mx.array_equal(hidden[j * width : (j + 1) * width], own)
            assert mx.array_equal(drafted[j * width : (j + 1) * width], own_drafted)
    assert all(differing(one, other) == [] for one, other in zip(together, alone, strict=True))
    assert steps.counts() == {"new batch": 2 * NEW_BATCH_STEPS, "compiled": 8}
    assert steps.num_traces() == 2


def in_pages(arena: Arena, num: int) -> Cache[Any]:
    cache = relayout(read(FAMILY, tiny.words(num, num)), Paged(64))
    pages = arena.store(Paged(64), num + 60)
    pages.put(0, cache.store.take(0, num))
    return Cache(arena, Paged(64), pages, cache.snapshot())
