"""Reading a prompt's suffix, chunk by chunk on an absolute grid, leaving marks. Knows one sequence; nothing of the bank or of requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import mlx.core as mx

from forerun.models.base import Family
from forerun.state.cache import Cache, Snapshot, View, lend

CHUNK_TOKENS = 512


def grid(position: int) -> int:
    """The next border of a chunk after `position`: a function of the position alone, never of load, marks or other requests."""
    return (position // CHUNK_TOKENS + 1) * CHUNK_TOKENS


def _look_away(start: int, hidden: mx.array) -> None: ...


def prefill(
    family: Family,
    cache: Cache[Any],
    tokens: Sequence[int],
    snapshot_positions: Collection[int],
    look: Callable[[int, mx.array], object] = _look_away,
) -> Iterator[list[Snapshot]]:
    """Read tokens[cache.length:] into the cache. After each chunk gives the marks at those of `snapshot_positions` that lie in it.

    Between two chunks the cache is whole and may be kept: the caller may stop at any of them. look: gets each chunk's first position and
    its hidden vectors [rows, dim].
    """
    while cache.length < len(tokens):
        start, stop = cache.length, min(grid(cache.length), len(tokens))
        snapshots, hidden = _read(family, cache, tokens[start:stop], sorted(p for p in snapshot_positions if start < p <= stop))
        mx.eval(cache.arrays(), [m.arrays() for m in snapshots])
        look(start, hidden)
        yield snapshots


def prime(family: Family, view: View, hidden: mx.array, tokens: mx.array) -> mx.array:
    """Make draft rows that stay, of target hiddens [rows, dim] and the tokens [rows] that follow them. Returns the draft's hiddens."""
    rows = tokens.shape[0]
    drafted = family.draft(hidden, tokens, [rows], view)
    view.keep_draft([rows])
    return drafted


def _read(family: Family, cache: Cache[Any], tokens: Sequence[int], snapshot_positions: Sequence[int]) -> tuple[list[Snapshot], mx.array]:
    ids, before = mx.array(list(tokens), dtype=mx.int32), cache.hidden
    with lend([cache], family.numerics) as view:
        hidden = family.forward(ids, [len(tokens)], view)
        snapshots = [view.snapshot(0, position, hidden) for position in snapshot_positions]
        view.keep([len(tokens)], hidden)
        if cache.spec.draft_layers:
            prime(family, view, mx.concatenate([before[None], hidden[:-1]]), ids)
    return snapshots, hidden
