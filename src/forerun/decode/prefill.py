"""Prefill of a prompt's suffix, chunk by chunk on an absolute grid, with snapshots. Knows one sequence; nothing of the bank or requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import mlx.core as mx

from forerun.models.base import Family
from forerun.state.cache import Cache, Snapshot, View, lend

CHUNK_TOKENS = 512


def grid(position: int) -> int:
    """The end of the chunk that holds `position`: a function of the position alone, never of load, snapshots or other requests."""
    return (position // CHUNK_TOKENS + 1) * CHUNK_TOKENS


def _ignore(start: int, hidden: mx.array) -> None: ...


def prefill(
    family: Family,
    cache: Cache[Any],
    tokens: Sequence[int],
    snapshot_positions: Collection[int],
    on_chunk: Callable[[int, mx.array], object] = _ignore,
) -> Iterator[list[Snapshot]]:
    """Prefill tokens[cache.length:]. After each chunk yields the snapshots at those of `snapshot_positions` that lie in it.

    Between two chunks the cache is complete: the caller may stop there and store it. on_chunk: called with each chunk's first position
    and hidden vectors [rows, dim].
    """
    while cache.length < len(tokens):
        start, stop = cache.length, min(grid(cache.length), len(tokens))
        snapshots, hidden = _prefill_chunk(family, cache, tokens[start:stop], sorted(p for p in snapshot_positions if start < p <= stop))
        mx.eval(cache.arrays(), [m.arrays() for m in snapshots])
        on_chunk(start, hidden)
        yield snapshots


def prime(family: Family, view: View, hidden: mx.array, tokens: mx.array) -> mx.array:
    """Compute and keep draft rows from target hidden vectors [rows, dim] and the tokens [rows] after them. Returns the draft's hidden."""
    rows = tokens.shape[0]
    drafted = family.draft(hidden, tokens, [rows], view)
    view.keep_draft([rows])
    return drafted


def _prefill_chunk(
    family: Family, cache: Cache[Any], tokens: Sequence[int], snapshot_positions: Sequence[int]
) -> tuple[list[Snapshot], mx.array]:
    ids, before = mx.array(list(tokens), dtype=mx.int32), cache.hidden
    with lend([cache], family.numerics) as view:
        hidden = family.forward(ids, [len(tokens)], view)
        snapshots = [view.snapshot(0, position, hidden) for position in snapshot_positions]
        view.keep([len(tokens)], hidden)
        if cache.spec.draft_layers:
            prime(family, view, mx.concatenate([before[None], hidden[:-1]]), ids)
    return snapshots, hidden
