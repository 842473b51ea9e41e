"""From records to a cache and back: `materialise` and `extract`, the only ways. Storage has no layout, so the caller arranges.

Knows nothing of tiers, chains or which record is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from forerun.errors import DamagedRecordError, UnsupportedError
from forerun.state.cache import Arrays, Cache, Snapshot
from forerun.state.contiguous import ContiguousStore, round_up
from forerun.state.layout import Contiguous, L, M
from forerun.state.record import Record
from forerun.state.spec import ArraySpec, StateSpec

Host = np.ndarray[tuple[int, ...], np.dtype[Any]]
_NUMPY: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype("<u2"), "float16": np.dtype("<u2")}


def materialise(spec: StateSpec, segments: Sequence[Record], mark: Record | None, layout: L, room_tokens: int) -> Cache[L]:
    """A cache in `layout` that continues after `mark`; no mark: an empty one. Its arrays are its own.

    segments: in order, from position 0 without a gap, up to mark.stop at least. room_tokens: rows that will be added soon.
    Raises DamagedRecordError if a record's size does not fit the spec.
    """
    snapshot = _snapshot(spec, mark) if mark is not None else _empty(spec)
    store = _store(spec, layout, round_up(snapshot.position + room_tokens))
    mx.eval(store.arrays())
    targets = [_host(a) for a in store.arrays()]
    covered = 0
    for segment in segments:
        if segment.start != covered or len(segment.payload) != len(segment.tokens) * spec.bytes_per_token:
            raise DamagedRecordError(f"segment {segment.key} ({segment.start}..{segment.stop}) does not fit after {covered} tokens")
        covered = min(segment.stop, snapshot.position)
        _fill(targets, spec, segment, covered)
    if covered != snapshot.position:
        raise DamagedRecordError(f"segments end at {covered}, the mark is at {snapshot.position}")
    return Cache(spec, layout, store, snapshot)


def extract(cache: Cache[Any], start: int, stop: int) -> memoryview:
    """The payload of a segment for the tokens start..stop of `cache`. A copy; stays valid whatever becomes of the cache."""
    if not 0 <= start < stop <= min(cache.length, cache.draft_length):
        raise ValueError(f"span {start}..{stop} is not within the {cache.length} tokens ({cache.draft_length} drafted) of the cache")
    return _joined([_host(a)[:, start:stop] for a in cache.store.arrays()])


def extract_mark(snapshot: Snapshot) -> memoryview:
    """The payload of a mark."""
    mx.eval(snapshot.arrays())
    return _joined([_host(a) for a in snapshot.arrays()])


def relayout(cache: Cache[L], layout: M) -> Cache[M]:
    """The same state in `layout`. Consumes `cache`."""
    if cache.is_lent or cache.is_broken:
        raise RuntimeError("a cache that is lent or broken cannot be arranged anew")
    snapshot, draft_length = cache.snapshot(), cache.draft_length
    cache.is_broken = True
    if type(cache.layout) is not type(layout):
        _store(cache.spec, layout, 0)
    new = Cache(cache.spec, layout, cache.store, snapshot)
    new.draft_length = draft_length
    return new


def _store(spec: StateSpec, layout: L, capacity: int) -> ContiguousStore:
    if not isinstance(layout, Contiguous):
        raise UnsupportedError(f"layout {layout} cannot be built yet", hint="use the contiguous layout")
    return ContiguousStore(spec.attention, capacity)


def _host(array: mx.array) -> Host:
    """The array's own memory as numpy sees it (16-bit floats as integers); writing to it writes to the array."""
    return np.asarray(array if array.dtype == mx.float32 else array.view(mx.uint16))


def _joined(parts: list[Host]) -> memoryview:
    payload = bytearray(sum(p.nbytes for p in parts))
    whole, offset = np.frombuffer(payload, np.uint8), 0
    for part in parts:
        whole[offset : offset + part.nbytes].view(part.dtype).reshape(part.shape)[...] = part
        offset += part.nbytes
    return memoryview(payload).toreadonly()


def _fill(targets: list[Host], spec: StateSpec, segment: Record, stop: int) -> None:
    """Copy the rows of `segment` before `stop` to their place in every target [kv_heads, capacity, head_dim]."""
    offset, tokens = 0, len(segment.tokens)
    for target, layer in zip(targets, [s for s in spec.attention for _ in "kv"], strict=True):
        shape = (layer.kv_heads, tokens, layer.head_dim)
        rows = np.frombuffer(segment.payload, _NUMPY[layer.dtype], layer.kv_heads * tokens * layer.head_dim, offset).reshape(shape)
        target[:, segment.start : stop] = rows[:, : stop - segment.start]
        offset += rows.nbytes


def _snapshot(spec: StateSpec, mark: Record) -> Snapshot:
    if len(mark.payload) != spec.bytes_per_mark:
        raise DamagedRecordError(f"mark {mark.key} has {len(mark.payload)} bytes, the model's marks have {spec.bytes_per_mark}")
    arrays, offset = [], 0
    for array in spec.mark_arrays:
        arrays.append(_array(mark.payload[offset : offset + array.num_bytes], array))
        offset += array.num_bytes
    return _as_snapshot(spec, mark.stop, arrays)


def _array(data: memoryview, spec: ArraySpec) -> mx.array:
    raw = mx.array(np.frombuffer(data, _NUMPY[spec.dtype]).reshape(spec.shape))
    return raw if spec.dtype == "float32" else raw.view(getattr(mx, spec.dtype))


def _empty(spec: StateSpec) -> Snapshot:
    return _as_snapshot(spec, 0, [mx.zeros(a.shape, dtype=getattr(mx, a.dtype)) for a in spec.mark_arrays])


def _as_snapshot(spec: StateSpec, position: int, arrays: list[mx.array]) -> Snapshot:
    recurrent: list[Arrays] = []
    for layer in spec.recurrent:
        recurrent.append(tuple(arrays[: len(layer.arrays)]))
        arrays = arrays[len(layer.arrays) :]
    return Snapshot(position, tuple(recurrent), arrays[0])
