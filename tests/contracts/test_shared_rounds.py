"""The contract of shared rounds, under exact numerics: whoever else decodes in the same passes, an answer's tokens, log-probabilities,
text and stored bytes are those of the answer alone.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.decode.mixes import FAMILIES, LAYOUTS, SAMPLINGS, Part, Running, Script, ScriptedDepths, alone, run_round, together
from tests.fake_family import FakeFamily, scattered
from tests.running import read

from forerun.decode import compiled
from forerun.decode.compiled import StepTable
from forerun.kernels.states import Arrays, States
from forerun.state.cache import View
from forerun.state.layout import Contiguous, Paged
from forerun.state.spec import ArraySpec, RecurrentSpec

PROMPTS = [(seed, num) for seed, num in product(range(2), (1, 30, 100, 250))]
STATE_FLOATS = 1 << 16
EXAMPLES = [60, pytest.param(1500, marks=pytest.mark.long)]


def mixes(block_tokens: int) -> st.SearchStrategy[list[Part]]:
    """Mixes of arrays and pages, of one size as in a server."""
    scripts = st.builds(
        Script,
        prompt=st.sampled_from(PROMPTS),
        sampling=st.sampled_from(sorted(SAMPLINGS)),
        seed=st.integers(1, 3),
        max_tokens=st.sampled_from([1, 2, 9, 25]),
        stop=st.sampled_from([(), ("\n",), ("a", "(*")]),
        num_top=st.sampled_from([None, None, 0, 3]),
        layout=st.sampled_from([Contiguous(), Paged(block_tokens)]),
        leave_after=st.sampled_from([None, None, 0, 1, 3]),
    )
    parts = st.builds(
        Part,
        script=scripts,
        joins=st.integers(0, 6),
        forks=st.booleans(),
        again=st.sampled_from([None, None, None, 1, 2]),
        sits_out=st.frozensets(st.integers(0, 8), max_size=3),
    )
    return st.lists(parts, min_size=2, max_size=6)


def check(name: str, mix: list[Part]) -> None:
    for part, found in zip(mix, together(name, mix), strict=True):
        assert found == alone(name, part.script), part


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", FAMILIES)
def test_any_mix_of_answers_gives_each_what_it_has_alone(name: str, examples: int) -> None:
    @settings(max_examples=examples, derandomize=examples < 100)
    @given(mix=st.one_of(mixes(16), mixes(64)))
    def run(mix: list[Part]) -> None:
        check(name, mix)

    run()


ACCEPTING = {"tiny": "seeded, few", "fake": "greedy"}  # samplings with which some drafts are accepted and some are not


def accepting(name: str, seed: int, **other: object) -> Script:
    return Script(sampling=ACCEPTING[name], seed=seed, max_tokens=25, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_mixes_above_accept_and_reject_drafts(name: str) -> None:
    found = [alone(name, accepting(name, seed)) for seed in (1, 2, 3)]
    assert sum(sum(one.drafted) for one in found) > sum(sum(one.accepted) for one in found) > 5
    assert min(len(one.tokens) for one in found) > 5


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("lengths", [(1, 1), (250, 1), (1, 250), (1000, 3), (3, 1000)])
def test_b1_an_answer_does_not_depend_on_its_neighbours_lengths(name: str, lengths: tuple[int, int]) -> None:
    before, after = (Script((1, num), max_tokens=30) for num in lengths)
    script = accepting(name, 1, num_top=2)
    assert together(name, [Part(before), Part(script), Part(after)])[1] == alone(name, script)


@pytest.mark.parametrize("name", FAMILIES)
def test_b2_new_answers_join_when_all_others_have_ended(name: str) -> None:
    mix = [Part(accepting(name, 1, leave_after=1)), Part(accepting(name, 2), joins=4), Part(accepting(name, 3), joins=60)]
    check(name, mix)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("num", range(2, 9))
def test_b3_equal_requests_have_equal_answers(name: str, num: int) -> None:
    script = Script((2, 30), max_tokens=16)
    found = together(name, [Part(script, forks=i > 0) for i in range(num)])
    assert set(found) == {alone(name, script)}
    assert len(found[0].tokens) > 5


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_b5_a_compiled_step_serves_one_answer_then_another_then_the_first(layout: object) -> None:
    one, other = accepting("tiny", 1, layout=layout), accepting("tiny", 2, layout=layout, prompt=(1, 40))
    steps = StepTable(FAMILIES["tiny"], eager_reason="")
    mix = [Part(one, sits_out=frozenset(range(1, 99, 2))), Part(other, sits_out=frozenset(range(0, 99, 2)))]
    assert together("tiny", mix, steps) == [alone("tiny", one), alone("tiny", other)]
    assert set(steps.counts()) == {"compiled"}
    traced = steps.num_traces()
    assert together("tiny", mix, steps) == [alone("tiny", one), alone("tiny", other)]
    assert steps.num_traces() == traced


@pytest.mark.parametrize("block_tokens", [16, 64])
def test_b5_a_compiled_step_of_several_serves_any_of_them(block_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of equal depths in one pool, which change: each set of sequences runs the steps that were traced with another."""
    monkeypatch.setattr(compiled, "NEW_BATCH_STEPS", 0)
    scripts = [accepting("tiny", i, layout=Paged(block_tokens), prompt=(i, 30 + 9 * i), depths=(2,)) for i in range(4)]
    mix = [Part(script, sits_out=frozenset(range(i, 99, 4))) for i, script in enumerate(scripts)]
    steps = StepTable(FAMILIES["tiny"], eager_reason="")
    assert together("tiny", mix, steps) == [alone("tiny", script) for script in scripts]
    assert {len(spans) for _, _, spans in steps._passes} >= {1, 3}
    assert steps.counts()["compiled"] > steps.counts()["batch"] > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_b6_draft_state_is_not_mixed_by_joining_leaving_and_sitting_out(name: str) -> None:
    stays = Part(accepting(name, 1))
    others = [Part(accepting(name, 2, leave_after=i), joins=2 * i, sits_out=frozenset({i + 1, i + 2})) for i in range(1, 4)]
    check(name, [others[0], stays, *others[1:]])


@pytest.mark.parametrize("name", FAMILIES)
def test_b9_of_different_depths_each_state_stops_at_its_own_accepted_token(name: str) -> None:
    seen = set[tuple[int, ...]]()
    mix = [Part(accepting(name, seed, prompt=(seed, 20 + seed))) for seed in range(1, 6)]
    found = together(name, mix, before_round=lambda members: seen.add(tuple(one.depth for one in members)))
    assert any(len(set(depths)) > 2 for depths in seen)
    assert found == [alone(name, part.script) for part in mix]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_of_which_no_row_is_kept_leaves_its_neighbours_as_they_are(name: str) -> None:
    """A stop string that began in tokens before the round: what the round adds to it is never state."""
    text = alone(name, accepting(name, 1)).text
    stopped = [Part(accepting(name, 1, stop=(text[i : i + 6],))) for i in range(2, 12, 2)]
    check(name, [*stopped, Part(accepting(name, 2)), Part(accepting(name, 3))])


@pytest.mark.parametrize("sampling", ["seeded", "fresh", "fresh, few", "fresh, penalised"])
def test_b11_each_answer_has_its_own_randomness(sampling: str) -> None:
    scripts = [Script(sampling=sampling, seed=seed, max_tokens=20) for seed in (1, 2, 1)]
    first, second, again = together("tiny", [Part(script) for script in scripts])
    assert first == again == alone("tiny", scripts[0])
    assert second.tokens != first.tokens
    assert second == alone("tiny", scripts[1])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_b12_rows_behind_an_answers_end_are_never_seen(name: str, layout: object) -> None:
    def spoil(members: Sequence[Running]) -> None:
        for store, start in ((one.generation.cache.store, one.generation.cache.length) for one in members):
            if store.capacity > start:
                store.put(start, [mx.full(rows.shape, 1e9) for rows in store.take(start, store.capacity)])

    mix = [Part(accepting(name, seed, layout=layout, prompt=(seed, 9 * seed))) for seed in (1, 2, 3)]
    found = together(name, mix, before_round=spoil)
    assert [one.tokens for one in found] == [alone(name, part.script).tokens for part in mix]
    assert [one.state for one in found] == [alone(name, part.script).state for part in mix]


class BatchedStates(FakeFamily):
    """States of a pass are slices of one tensor, as a kernel for several sequences returns them."""

    def __init__(self) -> None:
        super().__init__(scattered(tiny.VOCAB), tiny.VOCAB)
        sums, rows = self.spec.layers
        large = RecurrentSpec((ArraySpec("large", (STATE_FLOATS,), "float32"),))
        self.spec = replace(self.spec, layers=(sums, rows, large))

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        hidden = super().forward(tokens, spans, view)
        view.recur(2, self._batched, (tokens,))
        return hidden

    @staticmethod
    def _batched(states: States, inputs: Arrays, spans: Sequence[int]) -> tuple[mx.array, States]:
        (before,) = states.stacked()
        return inputs[0], States(stacked=(before + 1,))


def test_b19_a_stored_state_pins_no_memory_of_the_answers_it_shared_passes_with() -> None:
    family = BatchedStates()
    policy, steps = ScriptedDepths(), StepTable(family, eager_reason="test")
    gc.collect()
    before_bytes = mx.get_active_memory()
    scripts = [Script((seed, 60), seed=seed, max_tokens=40) for seed in range(8)]
    members = [Running(script, read(family, script.tokens), steps, policy) for script in scripts]
    for _ in range(3):
        run_round(policy, members)
    last = members.pop().generation
    last.store()
    cache, snapshot = last.cache, last.cache.snapshot()
    del last, members
    gc.collect()
    assert snapshot.num_bytes < mx.get_active_memory() - before_bytes < cache.num_bytes + 4 * STATE_FLOATS
