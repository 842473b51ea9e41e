"""Conversion between records and caches: `materialise` and `extract`, the only ways; and between caches: `fork` and `relayout`. Records
have no layout; the caller chooses one.

Knows nothing of tiers, prefix chains or which record is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from forerun.errors import DamagedRecordError
from forerun.kernels.states import Arrays
from forerun.state.cache import Cache, Snapshot
from forerun.state.host import NUMPY, Host, copy_to_host, host, is_shared, to_device
from forerun.state.layout import Contiguous, L, Layout, M, Paged
from forerun.state.record import Record
from forerun.state.spec import ArraySpec, StateSpec
from forerun.state.store import Arena, Store

_ROWS_AT_ONCE = 4096


def materialise(arena: Arena, segments: Sequence[Record], record: Record | None, layout: L, headroom_tokens: int) -> Cache[L]:
    """A new cache in `layout` with the state of the snapshot record; record None: an empty one. It shares no arrays.

    segments: in order, from position 0 without a gap, at least up to record.stop. headroom_tokens: rows that will be added soon.
    Raises DamagedRecordError if a record's size does not fit the spec.
    """
    spec = arena.spec
    snapshot = _snapshot(spec, record) if record is not None else _empty(spec)
    store, covered = arena.store(layout, snapshot.position + headroom_tokens), 0
    for segment in segments:
        if segment.info.start != covered or len(segment.payload) != len(segment.info.tokens) * spec.bytes_per_token:
            raise DamagedRecordError(
                f"segment {segment.info.key} ({segment.info.start}..{segment.info.stop}) does not fit after {covered} tokens",
                key=segment.info.key,
            )
        covered = min(segment.info.stop, snapshot.position)
        store.fill(segment.info.start, [rows[:, : covered - segment.info.start] for rows in _rows(spec, segment)])
    if covered != snapshot.position:
        raise DamagedRecordError(
            f"segments end at {covered}, the snapshot is at {snapshot.position}", key=record.info.key if record else ""
        )
    return Cache(arena, layout, store, snapshot)


def extract(cache: Cache[Any], start: int, stop: int) -> memoryview:
    """The payload of a segment for the tokens start..stop of `cache`: a copy, independent of the cache."""
    if cache.is_broken:
        raise RuntimeError("the state was lost with a failed step")
    if not 0 <= start < stop <= min(cache.length, cache.draft_length):
        raise ValueError(f"span {start}..{stop} is not within the {cache.length} tokens ({cache.draft_length} drafted) of the cache")
    return _joined(cache.store.rows(start, stop))


def extract_snapshot(snapshot: Snapshot) -> memoryview:
    """The payload of a snapshot record."""
    arrays = snapshot.arrays()
    mx.eval(arrays)
    return _joined([host(a) for a in arrays] if is_shared() else copy_to_host(arrays))


def fork(cache: Cache[Any], snapshot: Snapshot, layout: M, headroom_tokens: int) -> Cache[M]:
    """A new cache in `layout` with the state of `snapshot`, one of `cache`, which stays as it is: both continue on their own.

    Made on the device: rows are copied, or full pages of one pool shared; the snapshot's arrays are shared. `cache` may be lent to a pass
    that is paused. headroom_tokens: rows that will be added soon. Raises RuntimeError if `cache` is broken or its arrays are in use,
    ValueError if it does not have all rows of the snapshot, what MLX raises.
    """
    if cache.is_broken or not cache.store.buffers:
        raise RuntimeError("a cache that is broken, or whose arrays are in use, cannot be forked")
    stop = snapshot.position
    if stop > min(cache.length, cache.draft_length):
        raise ValueError(f"a snapshot at {stop} is not within the {cache.length} tokens ({cache.draft_length} drafted) of the cache")
    if cache.layout == layout:
        store = cache.store.fork(stop, stop + headroom_tokens)
    else:
        store = cache.arena.store(layout, stop + headroom_tokens)
        _copy_rows(cache.store, store, stop)
    return Cache(cache.arena, layout, store, snapshot)


def relayout(cache: Cache[L], layout: M) -> Cache[M]:
    """The same state in `layout`. Consumes `cache`."""
    if cache.is_lent or cache.is_broken:
        raise RuntimeError("a cache that is lent or broken cannot change its layout")
    store = cache.store
    if cache.layout != layout:
        store = cache.arena.store(layout, store.capacity)
        _copy_rows(cache.store, store, cache.length)
    new = Cache(cache.arena, layout, store, cache.snapshot())
    new.draft_length = cache.draft_length
    # A remaining reference to the consumed cache must not hold a second copy of the conversation.
    cache.store = store
    cache.drop()
    return new


def relayout_as_chosen(cache: Cache[Contiguous], layout: Layout) -> Cache[Contiguous] | Cache[Paged]:
    """`relayout` to a layout that is chosen at run time."""
    match layout:
        case Contiguous():
            return relayout(cache, layout)
        case Paged():
            return relayout(cache, layout)


def _copy_rows(source: Store, target: Store, stop: int) -> None:
    for start in range(0, stop, _ROWS_AT_ONCE):
        target.put(start, source.take(start, min(start + _ROWS_AT_ONCE, stop)))


def _joined(parts: list[Host]) -> memoryview:
    payload = bytearray(sum(p.nbytes for p in parts))
    whole, offset = np.frombuffer(payload, np.uint8), 0
    for part in parts:
        whole[offset : offset + part.nbytes].view(part.dtype).reshape(part.shape)[...] = part
        offset += part.nbytes
    return memoryview(payload).toreadonly()


def _rows(spec: StateSpec, segment: Record) -> list[Host]:
    """Keys and values [kv_heads, tokens, head_dim] of each layer, in the order of the payload."""
    rows: list[Host] = []
    offset, tokens = 0, len(segment.info.tokens)
    for layer in (s for s in spec.attention for _ in "kv"):
        count = layer.kv_heads * tokens * layer.head_dim
        part = np.frombuffer(segment.payload, NUMPY[layer.dtype], count, offset)
        rows.append(part.reshape(layer.kv_heads, tokens, layer.head_dim))
        offset += part.nbytes
    return rows


def _snapshot(spec: StateSpec, record: Record) -> Snapshot:
    if len(record.payload) != spec.bytes_per_snapshot:
        message = f"snapshot {record.info.key} has {len(record.payload)} bytes, the model's snapshots have {spec.bytes_per_snapshot}"
        raise DamagedRecordError(message, key=record.info.key)
    arrays, offset = [], 0
    for array in spec.snapshot_arrays:
        arrays.append(_array(record.payload[offset : offset + array.num_bytes], array))
        offset += array.num_bytes
    return _as_snapshot(spec, record.info.stop, arrays)


def _array(data: memoryview, spec: ArraySpec) -> mx.array:
    return to_device(np.frombuffer(data, NUMPY[spec.dtype]).reshape(spec.shape), getattr(mx, spec.dtype))


def _empty(spec: StateSpec) -> Snapshot:
    return _as_snapshot(spec, 0, [mx.zeros(a.shape, dtype=getattr(mx, a.dtype)) for a in spec.snapshot_arrays])


def _as_snapshot(spec: StateSpec, position: int, arrays: list[mx.array]) -> Snapshot:
    recurrent: list[Arrays] = []
    for layer in spec.recurrent:
        recurrent.append(tuple(arrays[: len(layer.arrays)]))
        arrays = arrays[len(layer.arrays) :]
    return Snapshot(position, tuple(recurrent), arrays[0])
