"""From a cache to records and back: equal bit for bit in every dtype, independent of each other, and checked before anything is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from tests import tiny
from tests.running import differing, empty, logits, read, snapshots

from forerun.errors import DamagedRecordError
from forerun.kernels.numerics import EXACT
from forerun.kernels.row_span import RowSpan
from forerun.state import contiguous, conversion, paged
from forerun.state.cache import Cache, Snapshot, lend
from forerun.state.contiguous import CAPACITY_STEP_TOKENS
from forerun.state.conversion import extract, extract_snapshot, materialise, relayout
from forerun.state.layout import Contiguous, Limits, Paged, layout_for, limits_of
from forerun.state.record import SEGMENT_TOKENS, Identity, PrefixHasher, Record
from forerun.state.spec import ArraySpec, AttentionSpec, RecurrentSpec, StateSpec
from forerun.state.store import Arena

FAMILY = tiny.family()
TOKENS = tiny.words("records", SEGMENT_TOKENS + 200)
HASHER = PrefixHasher(b"secret", "", Identity("w", "m", "t", "t", "float32", "exact"))


def segments_of(cache: Cache[Any], tokens: list[int]) -> list[Record]:
    found = []
    for start, parent in zip(range(0, len(tokens), SEGMENT_TOKENS), HASHER.nodes(tokens), strict=False):
        own = tuple(tokens[start : start + SEGMENT_TOKENS])
        payload = extract(cache, start, start + len(own))
        found.append(Record.of(HASHER.info("segment", parent, start, own), payload))
    return found


def snapshot_record(snapshot: Snapshot, tokens: list[int]) -> Record:
    start = snapshot.position // SEGMENT_TOKENS * SEGMENT_TOKENS
    parent, own = HASHER.nodes(tokens)[start // SEGMENT_TOKENS], tuple(tokens[start : snapshot.position])
    return Record.of(HASHER.info("snapshot", parent, start, own), extract_snapshot(snapshot))


@pytest.fixture(scope="module")
def whole() -> tuple[Cache[Any], list[Snapshot]]:
    return snapshots(FAMILY, TOKENS, [100, SEGMENT_TOKENS, SEGMENT_TOKENS + 77, len(TOKENS)])


@pytest.fixture(params=["memory shared", "memory apart"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as on a device with separate memory."""
    if request.param == "memory apart":
        for module in (contiguous, paged, conversion):
            monkeypatch.setattr(module, "is_shared", lambda: False)
            monkeypatch.setattr(module, "host", None)


@pytest.mark.usefixtures("memory")
def test_a_round_trip_changes_no_bit(whole: tuple[Cache[Any], list[Snapshot]]) -> None:
    cache, (*_, last) = whole
    back = materialise(Arena(FAMILY.spec), segments_of(cache, TOKENS), snapshot_record(last, TOKENS), Contiguous(), 10)
    assert differing(back, cache) == []
    assert mx.array_equal(logits(FAMILY, back), logits(FAMILY, cache))
    more = tiny.words("more", 70)
    assert differing(read(FAMILY, TOKENS + more, back), read(FAMILY, TOKENS + more)) == []


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("which", range(3))
def test_a_snapshot_inside_the_segments(whole: tuple[Cache[Any], list[Snapshot]], which: int) -> None:
    cache, found = whole
    segments, snapshot = segments_of(cache, TOKENS), found[which]
    needed = [s for s in segments if s.info.start < snapshot.position]
    back = materialise(Arena(FAMILY.spec), needed, snapshot_record(snapshot, TOKENS), Contiguous(), 10)
    assert differing(back, read(FAMILY, TOKENS[: snapshot.position])) == []
    assert all(float(mx.abs(a[:, snapshot.position :]).max()) == 0 for a in back.store.buffers)  # nothing beyond


def test_a_record_is_valid_while_the_cache_continues() -> None:
    cache = read(FAMILY, TOKENS[:100])
    (segment,), snapshot = segments_of(cache, TOKENS[:100]), snapshot_record(cache.snapshot(), TOKENS[:100])
    read(FAMILY, TOKENS[:130], cache)
    ones = mx.ones((100, tiny.KV_HEADS, tiny.HEAD_DIM))
    cache.store.write(0, RowSpan(0, mx.arange(100, dtype=mx.int32)), ones, ones)
    mx.eval(cache.arrays())
    one, other = (materialise(Arena(FAMILY.spec), [segment], snapshot, Contiguous(), 50) for _ in range(2))
    read(FAMILY, TOKENS[:100] + tiny.words("other", 30), other)
    assert differing(one, read(FAMILY, TOKENS[:100])) == []


@pytest.mark.parametrize("headroom", [0, 1, 156, 157, 1000])
def test_capacity_includes_the_headroom(headroom: int) -> None:
    assert (
        materialise(Arena(FAMILY.spec), [], None, Contiguous(), headroom).store.capacity
        == max(2, -(-headroom // 256)) * CAPACITY_STEP_TOKENS
    )


def test_capacity_does_not_change_a_prefill() -> None:
    assert differing(read(FAMILY, TOKENS[:60], empty(FAMILY, 0)), read(FAMILY, TOKENS[:60], empty(FAMILY, 5000))) == []


@pytest.mark.usefixtures("memory", "without_cpu_kernels")
@pytest.mark.parametrize("layout", [Contiguous(), Paged(16)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_comes_back_bit_for_bit(dtype: str, layout: Any) -> None:
    """As a GPU stores them: the CPU kernels write float32 alone."""
    spec = StateSpec(
        (RecurrentSpec((ArraySpec("tail", (3, 8), dtype), ArraySpec("matrix", (2, 4, 6), "float32"))), AttentionSpec(2, 4, dtype)),
        (AttentionSpec(1, 8, dtype),),
        ArraySpec("hidden", (5,), dtype),
    )
    cache = materialise(Arena(spec), [], None, layout, 300)
    for layer, of in enumerate(spec.attention):
        rows = [mx.random.normal((270, of.kv_heads, of.head_dim), key=mx.random.key(layer)).astype(getattr(mx, dtype)) for _ in "kv"]
        cache.store.write(layer, RowSpan(0, mx.arange(270, dtype=mx.int32)), rows[0], -rows[1])
    made = [mx.random.normal(a.shape, key=mx.random.key(9)).astype(getattr(mx, a.dtype)) for a in spec.snapshot_arrays]
    cache.truncate(Snapshot(270, ((made[0], made[1]),), made[2]))
    cache.draft_length = 270
    tokens = tiny.words(0, 270)
    segments, snapshot = segments_of(cache, tokens), snapshot_record(cache.snapshot(), tokens)
    assert [len(r.payload) for r in (*segments, snapshot)] == [270 * spec.bytes_per_token, spec.bytes_per_snapshot]
    back = materialise(Arena(spec), segments, snapshot, layout, 10)
    assert differing(back, cache) == []
    assert [a.dtype for a in back.arrays()] == [a.dtype for a in cache.arrays()]


def _shorter(records: list[Record]) -> list[Record]:
    return [replace(records[0], payload=records[0].payload[:-4]), *records[1:]]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda r: r[1:], "does not fit after 0 tokens"),
        (lambda r: [r[0], r[0], *r[1:]], f"does not fit after {SEGMENT_TOKENS} tokens"),
        (lambda r: [r[0], r[2]], f"segments end at {SEGMENT_TOKENS}, the snapshot is at {len(TOKENS)}"),
        (_shorter, "does not fit after 0 tokens"),
        (lambda r: [*r[:2], replace(r[2], payload=r[2].payload[:-4])], "the model's snapshots have"),
    ],
    ids=["gap", "twice", "too short", "fewer bytes", "fewer bytes of a snapshot"],
)
def test_records_that_do_not_fit_are_refused(whole: tuple[Cache[Any], list[Snapshot]], spoil: Any, complaint: str) -> None:
    cache, (*_, last) = whole
    *segments, snapshot = spoil([*segments_of(cache, TOKENS), snapshot_record(last, TOKENS)])
    with pytest.raises(DamagedRecordError, match=complaint):
        materialise(Arena(FAMILY.spec), segments, snapshot, Contiguous(), 0)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 5), (-1, 5), (90, 101), (6, 5)])
def test_only_spans_within_the_cache_can_be_extracted(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="is not within the 100 tokens"):
        extract(read(FAMILY, TOKENS[:100]), start, stop)


def test_rows_without_draft_rows_cannot_be_extracted() -> None:
    cache = read(FAMILY, TOKENS[:100])
    with lend([cache], EXACT) as view:
        view.keep([1], FAMILY.forward(mx.array([5]), [1], view))
    assert cache.length == 101
    extract(cache, 0, 100)
    with pytest.raises(ValueError, match=r"0\.\.101 is not within the 101 tokens \(100 drafted\)"):
        extract(cache, 0, 101)


def test_relayout_consumes_its_argument() -> None:
    cache, expected = read(FAMILY, TOKENS[:100]), read(FAMILY, TOKENS[:100])
    new = relayout(cache, Contiguous())
    assert differing(new, expected) == []
    assert new.layout == new.store.layout == Contiguous()
    with pytest.raises(RuntimeError), lend([cache], EXACT):
        pass
    with pytest.raises(RuntimeError, match="lent or broken"):
        relayout(cache, Contiguous())


def test_relayout_keeps_the_draft_rows_that_lag() -> None:
    cache = read(FAMILY, TOKENS[:100])
    cache.draft_length = 90
    assert relayout(cache, Contiguous()).draft_length == 90


def test_layouts_are_values() -> None:
    assert {Contiguous(), Paged(16), Paged(16), Paged(32)} == {Contiguous(), Paged(16), Paged(32)}


def test_decode_is_contiguous_up_to_the_limit_and_prefill_always() -> None:
    limits = Limits(1000, 64)
    assert layout_for("decode", 1000, limits) == layout_for("prefill", 1_000_000, limits) == Contiguous()
    assert layout_for("decode", 1001, limits) == Paged(64)


@pytest.mark.parametrize(("memory_bytes", "dense_tokens"), [(1 << 50, 131_072), (100_000 * 1000, 80_000), (0, 0)])
def test_the_limit_leaves_memory_to_grow_by_a_quarter(memory_bytes: int, dense_tokens: int) -> None:
    assert limits_of(1000, memory_bytes) == Limits(dense_tokens, 64)
