"""The contract of every family, bit for bit under exact numerics: logits and state do not depend on how tokens are split into passes, nor
on other sequences in a pass. Small random weights; see tests/families.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from tests import families
from tests.running import differing, differing_state, empty, read, snapshots, step

from forerun.decode.compiled import StepTable
from forerun.kernels.numerics import ARRAYS, EXACT
from forerun.models.base import Family
from forerun.state.cache import Cache, lend
from forerun.state.conversion import extract, extract_snapshot, materialise
from forerun.state.layout import Contiguous, Paged
from forerun.state.record import Identity, PrefixHasher, Record
from forerun.state.store import Arena

NUM = 150
HASHER = PrefixHasher(b"secret", "", Identity("w", "m", "t", "t", "float32", "exact"))
TOKENS = [int(t) for t in mx.random.randint(0, families.VOCAB, (NUM,), key=mx.random.key(5)).tolist()]  # type: ignore[union-attr]
QUANTISED, IN_ARRAYS = " quantised", " in arrays"


@cache
def built(kind: str) -> Family:
    """Built anew in arrays, since a family chooses its kernels at construction."""
    kind, numerics = kind.removesuffix(IN_ARRAYS), ARRAYS if kind.endswith(IN_ARRAYS) else EXACT
    config, tensors = families.CONFIGS[kind.removesuffix(QUANTISED)], families.tensors(kind.removesuffix(QUANTISED))
    if kind.endswith(QUANTISED):
        config, tensors = families.quantised(config, tensors)
    family: Family = families.built(config, tensors, numerics, is_dense=False)
    return family


@pytest.fixture(params=[*sorted(families.CONFIGS), f"qwen3_5_moe{QUANTISED}", f"qwen3_5{IN_ARRAYS}", f"qwen3_5_moe{QUANTISED}{IN_ARRAYS}"])
def family(request: pytest.FixtureRequest) -> Family:
    if request.param.endswith(IN_ARRAYS):
        request.getfixturevalue("without_cpu_kernels")
    return built(request.param)


@cache
def _cold(family: Family, num: int) -> Cache[Contiguous]:
    return read(family, TOKENS[:num])


def after(family: Family, num: int) -> Cache[Contiguous]:
    """The cache after one prefill of the first `num` tokens; do not modify it."""
    return _cold(family, num)


def test_prefill_in_pieces(family: Family) -> None:
    cache: Cache[Any] = empty(family)
    for stop in (1, 7, 64, 65, NUM):
        cache = read(family, TOKENS[:stop], cache)
    assert differing(cache, after(family, NUM)) == []


def test_steps_are_prefill(family: Family) -> None:
    cache = read(family, TOKENS[:130])
    rows = [step(family, cache, [token]) for token in TOKENS[130:]]
    assert differing(cache, after(family, NUM)) == []
    whole = read(family, TOKENS[:130])
    assert mx.array_equal(mx.concatenate(rows), step(family, whole, TOKENS[130:]))


@pytest.mark.parametrize("kept", [0, 3])
def test_verified_and_kept_rows_equal_single_steps(family: Family, kept: int) -> None:
    cache = read(family, TOKENS[:100])
    wrong = [*TOKENS[100 : 100 + kept], *(families.VOCAB - 1 - t for t in TOKENS[100 + kept : 104])]
    step(family, cache, wrong, keep=kept)
    assert differing(cache, after(family, 100 + kept)) == []
    more = TOKENS[100 + kept : 110]
    assert mx.array_equal(step(family, cache, more), step(family, read(family, TOKENS[: 100 + kept]), more))


@pytest.mark.parametrize("layout", [Contiguous(), Paged(16)], ids=str)
def test_a_restored_cache_equals_one_that_never_left_memory(family: Family, layout: Any) -> None:
    left, (snapshot,) = snapshots(family, TOKENS[:100], [70])
    own = tuple(TOKENS[:70])
    segment = Record.of(HASHER.info("segment", HASHER.root, 0, own), extract(left, 0, 70))
    end = Record.of(HASHER.info("snapshot", HASHER.root, 0, own), extract_snapshot(snapshot))
    restored = materialise(Arena(family.spec), [segment], end, layout, NUM)
    assert differing_state(restored, after(family, 70)) == []
    assert differing_state(read(family, TOKENS, restored), after(family, NUM)) == []


@pytest.mark.parametrize("others", [1, 2])
def test_rows_of_several_sequences(family: Family, others: int) -> None:
    """Several sequences in one pass: each has the bits that it has alone. Enough rows for products to be sorted by expert."""
    spans = [40, 3, 29][: others + 1]
    starts = [100, 20, 7][: others + 1]
    caches = [read(family, TOKENS[:start]) for start in starts]
    tokens = [TOKENS[start : start + span] for start, span in zip(starts, spans, strict=True)]
    with lend(caches, family.numerics) as view:
        hidden = family.forward(mx.array([t for each in tokens for t in each], dtype=mx.int32), spans, view)
        view.keep([0] * len(spans), hidden)
        together = mx.split(family.head(hidden), [sum(spans[: i + 1]) for i in range(others)])
    for start, each, rows in zip(starts, tokens, together, strict=True):
        assert mx.array_equal(rows, step(family, read(family, TOKENS[:start]), each))


@pytest.mark.parametrize("kind", sorted(families.CONFIGS))
def test_compiled_steps(kind: str) -> None:
    check_compiled_steps(built(kind))


@pytest.mark.long
@pytest.mark.usefixtures("without_cpu_kernels")
def test_compiled_steps_in_arrays() -> None:
    """MLX compiles many kernels for them."""
    check_compiled_steps(built(f"qwen3_5{IN_ARRAYS}"))


def check_compiled_steps(family: Family) -> None:
    """Compiled steps of one row and of three have the bits of eager ones."""
    steps, cache = StepTable(family, eager_reason=""), read(family, TOKENS[:80])
    for width in (1, 3):
        ids = mx.array(TOKENS[cache.length : cache.length + width], dtype=mx.int32)
        expected = step(family, read(family, TOKENS[: cache.length]), ids.tolist())
        with lend([cache], family.numerics) as view:
            hidden = steps.forward(ids, [cache], [ids.shape[0]], view)
            view.keep([width], hidden)
        assert mx.array_equal(family.head(hidden), expected)
    steps.release()
