"""A plain way to run a model, the reference for every other; and the comparison of states, bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from forerun.decode.prefill import prefill
from forerun.models.base import Family
from forerun.state.cache import Cache, Snapshot, lend
from forerun.state.conversion import materialise
from forerun.state.layout import Contiguous
from forerun.state.store import Arena


def empty(family: Family, headroom_tokens: int = 0) -> Cache[Contiguous]:
    """An empty cache."""
    return materialise(Arena(family.spec), [], None, Contiguous(), headroom_tokens)


def read(family: Family, tokens: Sequence[int], cache: Cache[Any] | None = None, snapshot_positions: Collection[int] = ()) -> Cache[Any]:
    """The cache after prefill of all of `tokens`, of which it may hold the first already."""
    cache = cache or empty(family, len(tokens))
    for _ in prefill(family, cache, tokens, snapshot_positions):
        pass
    return cache


def snapshots(family: Family, tokens: Sequence[int], at: Collection[int]) -> tuple[Cache[Any], list[Snapshot]]:
    """The cache after prefill of `tokens`, and snapshots at these positions."""
    cache, taken = empty(family, len(tokens)), []
    for new in prefill(family, cache, tokens, at):
        taken += new
    return cache, taken


def step(family: Family, cache: Cache[Any], tokens: Sequence[int], keep: int | None = None) -> mx.array:
    """One forward of these tokens, of which the first `keep` (default: all) become state, draft rows too. Returns the logits."""
    before = cache.hidden
    with lend([cache], family.numerics) as view:
        ids, num = mx.array(list(tokens), dtype=mx.int32), len(tokens) if keep is None else keep
        hidden = family.forward(ids, [len(tokens)], view)
        view.keep([num], hidden)
        if num and family.spec.draft_layers:
            family.draft(mx.concatenate([before[None], hidden[: num - 1]]), ids[:num], [num], view)
            view.keep_draft([num])
        logits = family.head(hidden)
        mx.eval(logits, cache.arrays())
    return logits


def logits(family: Family, cache: Cache[Any]) -> mx.array:
    """Logits [vocab] of the token after the cache's last."""
    return family.head(cache.hidden[None])[0]


def greedy(family: Family, cache: Cache[Any], num: int) -> list[int]:
    """The next `num` greedy tokens, one at a time; all but the last become state."""
    tokens = [int(mx.argmax(logits(family, cache)))]
    while len(tokens) < num:
        tokens.append(int(mx.argmax(step(family, cache, tokens[-1:])[-1])))
    return tokens


def differing(one: Cache[Any], other: Cache[Any]) -> list[str]:
    """Names of the differences of two caches; none if their layouts are the same and their states are equal bit for bit."""
    if one.layout != other.layout:
        return [f"layout: {one.layout} and {other.layout}"]
    return differing_state(one, other)


def differing_state(one: Cache[Any], other: Cache[Any]) -> list[str]:
    """Names of the differences of two caches' states, whatever their layouts."""
    differences = [name for name in ("length", "draft_length") if getattr(one, name) != getattr(other, name)]
    if differences:
        return [f"{name}: {getattr(one, name)} and {getattr(other, name)}" for name in differences]
    n = one.length
    pairs = list(zip(one.store.rows(0, n), other.store.rows(0, n), strict=True)) if n else []
    differences += [f"rows of attention array {i}" for i, (a, b) in enumerate(pairs) if not np.array_equal(a, b)]
    fixed = zip(one.snapshot().arrays(), other.snapshot().arrays(), strict=True)
    return differences + [f"snapshot array {i}" for i, (a, b) in enumerate(fixed) if not mx.array_equal(a, b)]
