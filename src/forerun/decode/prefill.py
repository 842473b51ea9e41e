"""Prefill of a prompt's suffix, chunk by chunk on an absolute grid, with snapshots. Knows one sequence; nothing of the bank or requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any

import mlx.core as mx

from forerun.models.base import Family
from forerun.state.cache import Cache, Snapshot, lend

CHUNK_TOKENS = 512
PIECES = 4  # of a chunk, between which others may decode


def grid(position: int) -> int:
    """The end of the chunk that holds `position`: a function of the position alone, never of load, snapshots or other requests."""
    return (position // CHUNK_TOKENS + 1) * CHUNK_TOKENS


def _ignore(start: int, hidden: mx.array) -> None: ...


def _never() -> bool:
    return False


def prefill(
    family: Family,
    cache: Cache[Any],
    tokens: Sequence[int],
    snapshot_positions: Collection[int],
    on_chunk: Callable[[int, mx.array], object] = _ignore,
    is_pausing: Callable[[], bool] = _never,
) -> Iterator[list[Snapshot]]:
    """Prefill tokens[cache.length:]. After each chunk yields the snapshots at those of `snapshot_positions` that lie in it.

    Between two chunks the cache is complete: the caller may stop there and store it. on_chunk: called with each chunk's first position
    and hidden vectors [rows, dim]. is_pausing: asked PIECES - 1 times within a chunk, between layers; if true, what came before is
    evaluated and nothing yielded ([]), with the cache lent: the caller may run passes over other caches, then continues.
    """
    while cache.length < len(tokens):
        start, stop = cache.length, min(grid(cache.length), len(tokens))
        positions = sorted(p for p in snapshot_positions if start < p <= stop)
        snapshots, hidden = yield from _chunk(family, cache, tokens[start:stop], positions, is_pausing)
        mx.eval(cache.arrays(), [m.arrays() for m in snapshots])
        on_chunk(start, hidden)
        yield snapshots


def _chunk(
    family: Family, cache: Cache[Any], tokens: Sequence[int], snapshot_positions: Sequence[int], is_pausing: Callable[[], bool]
) -> Generator[list[Snapshot], None, tuple[list[Snapshot], mx.array]]:
    ids, before = mx.array(list(tokens), dtype=mx.int32), cache.hidden
    with lend([cache], family.numerics) as view:
        hidden = yield from _paused(family.passes(ids, [len(tokens)], view), len(family.spec.layers), is_pausing)
        snapshots = [view.snapshot(0, position, hidden) for position in snapshot_positions]
        view.keep([len(tokens)], hidden)
        if cache.spec.draft_layers:
            family.draft(mx.concatenate([before[None], hidden[:-1]]), ids, [len(tokens)], view)
            view.keep_draft([len(tokens)])
    return snapshots, hidden


def _paused(passes: Iterator[mx.array], num_layers: int, is_pausing: Callable[[], bool]) -> Generator[list[Snapshot], None, mx.array]:
    """The last of `passes`, with pauses after each group of layers."""
    for i, x in enumerate(passes, start=1):
        if i < num_layers and i % -(-num_layers // PIECES) == 0 and is_pausing():
            mx.eval(x)
            yield []
    return x
