"""The fake family behaves like a family: it checks its state, its drafts are verified, and it generates its script."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest
from tests.fake_family import FakeFamily, after, scattered
from tests.running import differing, greedy, read
from tests.talking import SEEDED, generation

from forerun.state.conversion import extract, extract_snapshot, materialise
from forerun.state.layout import Contiguous
from forerun.state.record import Record, RecordInfo
from forerun.state.store import Arena
from forerun.values import GREEDY, Sampling

VOCAB = 500
PROMPT = [(7 * i + i // 5) % VOCAB for i in range(700)]


def test_it_generates_its_script() -> None:
    assert greedy(FakeFamily(after(len(PROMPT), [5, 6, 7], then=2), VOCAB), read(FakeFamily(scattered(VOCAB), VOCAB), PROMPT), 5) == [
        5,
        6,
        7,
        2,
        2,
    ]


def test_its_tokens_depend_on_every_token_before() -> None:
    family = FakeFamily(scattered(VOCAB), VOCAB)
    other = [PROMPT[0] + 1, *PROMPT[1:]]
    assert greedy(family, read(family, PROMPT), 5) != greedy(family, read(family, other), 5)


def test_its_state_is_restored() -> None:
    family = FakeFamily(scattered(VOCAB), VOCAB)
    cache = read(family, PROMPT)
    segment = Record.of(RecordInfo("segment", "", "", "", 0, tuple(PROMPT)), extract(cache, 0, len(PROMPT)))
    snapshot = Record.of(RecordInfo("snapshot", "", "", "", 0, tuple(PROMPT)), extract_snapshot(cache.snapshot()))
    back = materialise(Arena(family.spec), [segment], snapshot, Contiguous(), 10)
    assert differing(back, cache) == []
    assert greedy(family, back, 20) == greedy(family, cache, 20)


@pytest.mark.parametrize(("layer", "depth"), [(0, 0), (1, 2)])
def test_a_lost_row_is_detected(layer: int, depth: int) -> None:
    family = FakeFamily(scattered(VOCAB), VOCAB)
    cache = read(family, PROMPT)
    assert PROMPT[333] % 7
    cache.store.buffers[2 * layer + 1][:, 333] = 0.0
    with pytest.raises(AssertionError, match="attention sees"):
        list(generation(family, cache, PROMPT, depth=depth))


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, replace(SEEDED, seed=None)], ids=["greedy", "seeded", "fresh"])
@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_good_drafts_are_accepted_and_wrong_ones_are_not(sampling: Sampling, depth: int) -> None:
    perfect, faulty = FakeFamily(scattered(VOCAB), VOCAB, wrong_every=1 << 20), FakeFamily(scattered(VOCAB), VOCAB)
    expected = greedy(perfect, read(perfect, PROMPT), 33)
    good, bad = (generation(each, read(each, PROMPT), PROMPT, sampling=sampling, depth=depth, max_tokens=33) for each in (perfect, faulty))
    for answer in (good, bad):
        assert sum(1 for _ in answer) == 1 + answer.draft_stats.rounds
        assert answer.tokens == expected
    assert good.draft_stats.rounds == -(-32 // (depth + 1))
    assert sum(bad.draft_stats.accepted) < sum(bad.draft_stats.drafted)


def test_a_seed_draws_the_same_noise_for_draft_and_target() -> None:
    """All tokens are equally likely: with independent noise almost all drafts would be rejected."""

    class Undecided(FakeFamily):
        def head(self, hidden: mx.array) -> mx.array:
            return mx.zeros((hidden.shape[0], self.vocab))

    family = Undecided(scattered(VOCAB), VOCAB)
    answer = generation(family, read(family, PROMPT), PROMPT, depth=3, max_tokens=41)
    for _ in answer:
        pass
    assert answer.draft_stats.accepted[0] == answer.draft_stats.drafted[0] == 10
    assert len(set(answer.tokens)) > 30
