"""Prefill: an absolute grid, snapshots that split no chunk, a complete cache between chunks, draft rows too."""

from __future__ import annotations

import mlx.core as mx
import pytest
from tests import tiny
from tests.fake_family import FakeFamily, scattered
from tests.running import differing, empty, logits, read, snapshots
from tests.talking import cold

from forerun.decode.prefill import CHUNK_TOKENS, grid, prefill
from forerun.state.conversion import extract

FAMILY = tiny.family()
FAKE = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)  # where positions are all that matters
TOKENS = tiny.words("prefill", 1300)


@pytest.mark.parametrize(("position", "border"), [(0, 512), (1, 512), (511, 512), (512, 1024), (1500, 1536)])
def test_the_grid_is_a_function_of_the_position(position: int, border: int) -> None:
    assert grid(position) == border


def lengths(start: int, snapshot_positions: set[int]) -> list[int]:
    cache = read(FAKE, TOKENS[:start])
    return [cache.length for _ in prefill(FAKE, cache, TOKENS, snapshot_positions)]


@pytest.mark.parametrize("start", [0, 100, 512])
def test_chunks_end_on_the_grid_whatever_the_snapshots(start: int) -> None:
    expected = [border for border in (CHUNK_TOKENS, 2 * CHUNK_TOKENS, len(TOKENS)) if border > start]
    assert lengths(start, set()) == lengths(start, {600, 601, 1024, 1299}) == expected


def test_each_snapshot_comes_once_with_its_chunk() -> None:
    found = [[m.position for m in new] for new in prefill(FAKE, empty(FAKE), TOKENS, [0, 5, 512, 513, 1300, 1301])]
    assert found == [[5, 512], [513], [1300]]


def test_a_stop_between_two_chunks_loses_nothing() -> None:
    cache = empty(FAMILY)
    next(prefill(FAMILY, cache, TOKENS, []))
    assert differing(cache, cold(TOKENS[:CHUNK_TOKENS])) == []
    assert differing(read(FAMILY, TOKENS, cache), cold(TOKENS)) == []


@pytest.mark.parametrize("borders", [[511, 512, 513], [1, 300, 700, 1299]], ids=str)
def test_pauses_change_no_bit(borders: list[int]) -> None:
    cache = empty(FAMILY)
    for border in borders:
        read(FAMILY, TOKENS[:border], cache)
    assert differing(read(FAMILY, TOKENS, cache), cold(TOKENS)) == []


def test_a_fully_cached_prompt_needs_no_prefill() -> None:
    assert list(prefill(FAMILY, read(FAMILY, TOKENS[:70]), TOKENS[:70], [70])) == []


def test_a_cache_truncated_to_a_snapshot_continues_like_its_prompt() -> None:
    cache, (snapshot,) = snapshots(FAMILY, TOKENS[:600], [333])
    cache.truncate(snapshot)
    other = TOKENS[:333] + tiny.words("other", 50)
    assert mx.array_equal(logits(FAMILY, read(FAMILY, other, cache)), logits(FAMILY, cold(other)))


def test_prefill_without_a_draft_head() -> None:
    config = tiny.CONFIG | {"text_config": tiny.CONFIG["text_config"] | {"mtp_num_hidden_layers": 0}}
    tensors = {name: tensor for name, tensor in tiny.weights(0).items() if not name.startswith("mtp.")}
    family = tiny.built(config, tensors)
    cache = read(family, TOKENS[:90])
    assert cache.draft_length == 90
    assert len(extract(cache, 0, 90)) == 90 * family.spec.bytes_per_token
