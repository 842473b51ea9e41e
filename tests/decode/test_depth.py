"""The depth policy alone, on simulated machines with given times and acceptances and a simulated clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

import pytest

from forerun.decode.depth import PROBE_FRAC, WARN_AFTER, WARN_ROUNDS, Acceptance, DepthPolicy
from forerun.decode.draft_stats import DraftStats, Round

STEPS = (1.0, 1.3, 1.75, 2.4, 2.9, 3.3, 3.6, 3.9)  # seconds of a round with 0, 1, ... drafts
SLOW = (1.0, 1.8, 2.4, 2.9, 3.4, 3.9, 4.4, 4.9)  # where each row costs: long contexts on a CPU
AUTO = range(4)


class Machine:
    """Runs rounds as a policy wants them. chances, steps: acceptance by depth and seconds by depth at a token count; noise: mean delay."""

    def __init__(
        self,
        policy: DepthPolicy,
        chances: Callable[[int], Sequence[float]],
        steps: Callable[[int], Sequence[float]] = lambda position: STEPS,
        *,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.policy, self.chances, self.steps, self.noise = policy, chances, steps, noise
        self.position, self.seconds, self.depths = 0, 0.0, [0]
        self._rng = random.Random(seed)

    def run(self, until: int) -> DraftStats:
        """The rounds that make the tokens up to this position."""
        draft_stats = DraftStats()
        while self.position < until:
            draft_stats.add(self._round())
        return draft_stats

    def _round(self) -> Round:
        at = self.position
        depth, accepted = self.policy.choose(at, 99), 0
        while accepted < depth and self._rng.random() < self.chances(at)[accepted]:
            accepted += 1
        delay = 1 + (self._rng.expovariate(1 / self.noise) if self.noise else 0.0)
        seconds = self.steps(at)[depth] * delay
        done = Round([0] * (accepted + 1), depth, accepted, seconds if depth == self.depths[-1] else None)
        self.position, self.seconds = at + accepted + 1, self.seconds + seconds
        self.depths.append(depth)
        self.policy.observe(at, done)
        return done


def rates(chances: Sequence[float], steps: Sequence[float] = STEPS) -> list[float]:
    """Tokens per second of each fixed depth, by the formula."""
    return [(1 + sum(accumulate(chances[:depth], mul))) / steps[depth] for depth in AUTO]


@pytest.mark.parametrize("chances", [(0.2, 0.2, 0.2), (0.5, 0.4, 0.3), (0.88, 0.76, 0.61), (0.97, 0.97, 0.97), (0.3, 1.0, 1.0), (0, 1, 1)])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_it_comes_within_5_percent_of_the_best_fixed_depth(chances: Sequence[float], noise: float) -> None:
    for seed in range(5):
        machine = Machine(DepthPolicy(AUTO), lambda position: chances, noise=noise, seed=seed)
        machine.run(6000)
        assert 6000 / machine.seconds > 0.95 * max(rates(chances)) / (1 + noise)


@pytest.mark.parametrize("pays", range(4))
def test_it_converges_to_the_best_depth(pays: int) -> None:
    steps = [1.0 if depth == pays else 3.0 for depth in range(8)]
    draft_stats = Machine(DepthPolicy(AUTO), lambda position: (0.7, 0.7, 0.7), lambda position: steps).run(3000)
    assert draft_stats.depths[pays] > 0.9 * draft_stats.rounds


def test_seven_drafts_where_they_pay_though_three_pay_less_than_two() -> None:
    machine = Machine(DepthPolicy(range(8)), lambda position: [0.97] * 7)
    machine.run(3000)
    draft_stats = machine.run(9000)
    assert draft_stats.depths[7] > 0.8 * draft_stats.rounds


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_head_that_is_always_wrong_costs_less_than_3_percent(noise: float) -> None:
    for seed in range(5):
        machine = Machine(DepthPolicy(AUTO), lambda position: (0, 0, 0), noise=noise, seed=seed)
        machine.run(1200)
        assert machine.seconds < 1.03 * 1200 * (1 + noise)
        start_s = machine.seconds
        machine.run(11_200)
        assert machine.seconds - start_s < (1.005 + PROBE_FRAC) * 10_000 * (1 + noise)


def test_depth_1_is_probed_at_once_and_every_depth_repeatedly() -> None:
    """Once: what is expected to cost time after the first probe waits until it is saved."""
    machine = Machine(DepthPolicy(AUTO), lambda position: (0, 0, 0))
    assert machine.run(20).depths[:4] == [17, 3, 0, 0]
    for _ in range(10):
        assert all(machine.run(machine.position + 2500).depths[:4])


def test_it_climbs_while_drafts_pay() -> None:
    machine = Machine(DepthPolicy(AUTO), lambda position: (1, 1, 1))
    assert all(machine.run(60).depths[:4])


def test_a_first_short_answer_pays_for_few_probes() -> None:
    machines = [Machine(DepthPolicy(AUTO), lambda position: (0.4, 0.3, 0.2), lambda position: SLOW, seed=seed) for seed in range(20)]
    for machine in machines:
        machine.run(128)
    assert sum(machine.seconds for machine in machines) < 1.03 * sum(machine.position for machine in machines)


def test_a_very_short_first_answer_pays_for_one_probe() -> None:
    machines = [Machine(DepthPolicy(AUTO), lambda position: (0.5, 0.4, 0.3), lambda position: SLOW, seed=seed) for seed in range(50)]
    for machine in machines:
        machine.run(38)
    assert sum(machine.seconds for machine in machines) < 1.04 * sum(machine.position for machine in machines)


def test_disturbed_rounds_do_not_keep_it_at_drafts_that_do_not_pay() -> None:
    for seed in range(100):
        noise = random.Random(seed)
        machine = Machine(DepthPolicy(AUTO), lambda position: (0.4, 0.3, 0.2), seed=seed)
        machine.steps = lambda position, noise=noise: [s * (noise.uniform(2, 10) if noise.random() < 0.1 else 1) for s in SLOW]
        machine.run(128)
        before = len(machine.depths)
        machine.run(640)
        assert sum(SLOW[depth] for depth in machine.depths[before:]) < 1.06 * 512


def test_short_and_long_contexts_have_their_own_acceptance() -> None:
    def chances(position: int) -> Sequence[float]:
        return (0.4, 0.3, 0.2) if position > 8192 else (0.9, 0.9, 0.9)

    seconds = {0: 0.0, 10_000: 0.0}
    for seed in range(10):
        machine = Machine(DepthPolicy(AUTO), chances, lambda position: SLOW, seed=seed)
        for turn in range(10):
            for start in seconds:
                machine.position, start_s = start, machine.seconds
                machine.run(start + 128)
                seconds[start] += (machine.seconds - start_s) * (turn >= 5)
    tokens = 10 * 5 * 128
    assert seconds[0] < tokens / 1.12
    assert seconds[10_000] < tokens * 1.02


def test_it_adapts_when_drafts_become_accepted() -> None:
    machine = Machine(DepthPolicy(AUTO), lambda position: (0.9, 0.9, 0.9) if position > 5000 else (0, 0, 0))
    assert machine.run(5000).depths[0] > 4800
    machine.run(5600)
    assert machine.run(6600).depths[0] < 20


def test_it_adapts_when_drafts_become_rejected() -> None:
    machine = Machine(DepthPolicy(AUTO), lambda position: (0, 0, 0) if position > 5000 else (0.9, 0.9, 0.9))
    machine.run(5100)
    assert machine.run(6100).depths[0] > 950


def test_short_and_long_contexts_have_their_own_depths() -> None:
    def steps(position: int) -> list[float]:
        return [1.0 + (2.0 * depth if position > 8192 else 0.2 * depth) for depth in range(8)]

    machine = Machine(DepthPolicy(AUTO), lambda position: (0.7, 0.7, 0.7), steps)
    assert machine.run(8192).depths[0] < 100
    machine.run(9200)
    assert machine.run(12_000).depths[0] > 2500
    machine.position = 4096  # another conversation, as short as the first: measurements still hold
    assert machine.run(5000).depths[0] < 20


def test_a_machine_that_slows_down_changes_no_choice() -> None:
    machine = Machine(DepthPolicy(AUTO), lambda position: (0.8, 0.1, 0.1), lambda position: [s * 1.01 ** (position / 30) for s in STEPS])
    draft_stats = machine.run(6000)
    assert draft_stats.depths[1] > 0.9 * draft_stats.rounds


def test_a_delayed_round_changes_no_choice() -> None:
    machine = Machine(
        DepthPolicy(AUTO), lambda position: (0.8, 0.1, 0.1), lambda position: [s * (100 if position % 7 == 0 else 1) for s in STEPS]
    )
    draft_stats = machine.run(6000)
    assert draft_stats.depths[1] > 0.9 * draft_stats.rounds


def test_the_limit_holds_and_a_round_that_it_shortens_is_no_probe() -> None:
    policy = DepthPolicy(AUTO)
    for _ in range(50):
        depth = policy.choose(100, 1)
        assert depth <= 1
        policy.observe(100, Round([0], depth, 0, 1.0))
    assert policy.choose(100, 99) > 1


@pytest.mark.parametrize("depth", [0, 2, 7])
def test_a_fixed_depth_never_changes(depth: int) -> None:
    draft_stats = Machine(DepthPolicy((depth,)), lambda position: [0.0] * 7).run(2000)
    assert draft_stats.depths[depth] == draft_stats.rounds == 2000


def test_choosing_changes_nothing() -> None:
    machines = [Machine(DepthPolicy(AUTO), lambda position: (0.5, 0.5, 0.5)) for _ in range(2)]
    for until in range(100, 3000, 100):
        for context_tokens in (10, 100_000):
            machines[0].policy.choose(context_tokens, 3)
        assert machines[0].run(until).depths == machines[1].run(until).depths


def test_acceptance_counts_drafts_after_accepted_ones() -> None:
    acceptance = Acceptance()
    for i in range(2000):
        acceptance.observe(3, (0, 1, 2, 3)[i % 4])
    assert acceptance.chances[:3] == pytest.approx([3 / 4, 2 / 3, 1 / 2], abs=0.03)
    assert acceptance.chances[3] == acceptance.chances[2]  # never drafted: as the one before


def test_the_warning_comes_with_enough_drafts_and_goes_when_they_are_accepted() -> None:
    acceptance = Acceptance()
    for i in range(WARN_ROUNDS):
        assert acceptance.is_failing == (i >= WARN_AFTER)
        acceptance.observe(2, 0)
    for i in range(WARN_ROUNDS // 20):
        assert acceptance.is_failing, i
        acceptance.observe(1, 1)
    assert not acceptance.is_failing


def test_few_drafts_that_are_sometimes_accepted_are_no_failure() -> None:
    acceptance = Acceptance()
    for i in range(400):
        acceptance.observe(3, int(i % 10 == 9))
        acceptance.observe(0, 0)
        assert not acceptance.is_failing


def test_a_head_that_is_never_right_stays_failing_though_it_is_rarely_probed() -> None:
    policy = DepthPolicy(AUTO)
    Machine(policy, lambda position: [0.0] * 7).run(2000)
    assert policy.choose(100, 3) == 0
    assert policy.acceptance.is_failing


def test_draft_stats_count_by_depth() -> None:
    draft_stats = DraftStats()
    for drafted, accepted in ((3, 1), (3, 3), (1, 0), (0, 0)):
        draft_stats.add(Round([0] * (accepted + 1), drafted, accepted, None))
    assert (draft_stats.rounds, draft_stats.deepest) == (4, 3)
    assert (draft_stats.drafted[:3], draft_stats.accepted[:3], draft_stats.depths[:4]) == ([3, 2, 2], [2, 1, 1], [1, 1, 0, 2])


def test_one_kind_of_sampling_does_not_switch_drafts_off_for_another() -> None:
    policy = DepthPolicy(AUTO)

    def rounds(kind: str, accepts: bool, num: int) -> list[int]:
        depths = []
        for _ in range(num):
            depth = policy.choose(2000, 99, kind)
            depths.append(depth)
            policy.observe(2000, Round([0], depth, depth if accepts else 0, 1 + 0.1 * depth), kind)
        return depths

    assert rounds("greedy", True, 100)[-1] == 3
    assert rounds("hot", False, 200)[-1] == 0
    assert 3 in rounds("greedy", True, 3)


# --- several sequences


BATCH_CHANCES = (0.75, 0.65, 0.55)


def batch_s(num: int, depth: int) -> float:
    """A round of `num` sequences: weights are read once, and more than a dozen rows cost time each; so does drafting."""
    return max(1.0, num * (depth + 1) / 12) + 0.15 * depth


def batch_run(policy: DepthPolicy, num: int, rounds: int, *, seed: int = 0) -> tuple[float, list[int]]:
    """Tokens per second of all together, and the depths."""
    rng, tokens, seconds, depths = random.Random(seed), 0, 0.0, list[int]()
    for _ in range(rounds):
        chosen = policy.choose_all(["greedy"] * num, [500] * num, [99] * num)
        assert len(set(chosen)) == 1
        round_s, done = batch_s(num, chosen[0]), list[Round]()
        for depth in chosen:
            accepted = 0
            while accepted < depth and rng.random() < BATCH_CHANCES[accepted]:
                accepted += 1
            done.append(Round([0] * (accepted + 1), depth, accepted, round_s if depths[-1:] == [depth] else None))
        policy.observe_all(["greedy"] * num, [500] * num, done)
        tokens, seconds = tokens + sum(len(each.tokens) for each in done), seconds + round_s
        depths.append(chosen[0])
    return tokens / seconds, depths


def test_b20_depth_falls_with_the_number_of_sequences_and_drafts_never_cost_throughput() -> None:
    usual: list[int] = []
    for num in (1, 2, 4, 8):
        rate, depths = batch_run(DepthPolicy(AUTO), num, 3000)
        assert rate >= 0.97 * num / batch_s(num, 0), "slower than without drafts"
        best = max((1 + sum(accumulate(BATCH_CHANCES[:depth], mul))) * num / batch_s(num, depth) for depth in AUTO)
        assert rate >= 0.93 * best
        usual.append(max(AUTO, key=depths.count))
    assert usual == sorted(usual, reverse=True)
    assert usual[0] > usual[-1]


def test_b7_times_of_shared_rounds_change_nothing_for_a_lone_sequence() -> None:
    policy = DepthPolicy(AUTO)
    batch_run(policy, 1, 500)
    before = [policy.choose(500, 99, "greedy") for _ in range(3)]
    _, shared = batch_run(policy, 8, 500)
    assert max(AUTO, key=shared.count) < before[0]
    rate, depths = batch_run(policy, 1, 100)
    assert depths[0] == before[0]
    assert rate >= 0.93 * max((1 + sum(accumulate(BATCH_CHANCES[:depth], mul))) / batch_s(1, depth) for depth in AUTO)


def test_each_sequences_depth_is_limited_by_its_own_rest() -> None:
    policy = DepthPolicy((3,))
    assert policy.choose_all(["greedy"] * 3, [100, 2000, 5], [0, 99, 2]) == [0, 3, 2]
    assert policy.choose_all(["greedy"], [100], [1]) == [1]


def test_a_shared_round_of_unequal_depths_teaches_acceptance_but_no_time() -> None:
    policy, unequal = DepthPolicy((2,)), [Round([0] * 3, 2, 2, 1000.0), Round([0], 0, 0, 1000.0)]
    before = policy.acceptance.chances[0]
    policy.observe_all(["greedy"] * 2, [500, 500], unequal)
    assert policy.acceptance.chances[0] > before
    times = policy._of(2)._evidence_at(500, "greedy").times
    assert not times._paces
    policy.observe_all(["greedy"] * 2, [500, 500], [Round([0] * 3, 2, 2, 3.0)] * 2)
    assert times._paces


def test_batches_of_different_sizes_have_times_of_their_own() -> None:
    policy = DepthPolicy(AUTO)
    before = {num: max(AUTO, key=batch_run(policy, num, 600)[1].count) for num in (2, 8)}
    assert before[8] < before[2]
    after = batch_run(policy, 2, 60)[1]
    assert after.count(before[8]) < len(after) / 4, "it begins with what was best for eight"
