"""How many tokens to draft: the depth with most tokens per second, from measured acceptance and measured time.

Pure policy: it observes every completed round and chooses the depth of the next one. One object serves all requests of an engine, so that
measurements persist; a cancelled or failed round is not observed. Knows no MLX, no clock and no sequence.

Depth k gives 1 + p1 + p1 p2 + ... + p1..pk tokens a round, where pi is the chance that draft i is accepted if those before it were. A
round's time is measured as a whole, k drafts and a verification of k + 1 rows, since its only synchronisation with the host is at its end.
Both depend on the length of the context and the kind of sampling, so each is learned for about one length and one kind.

It begins with the fewest drafts and climbs while drafts pay: until they are measured, the next shallower depth is probed at once, and the
next deeper one where that is expected to cost nothing.
What is measured goes stale, so every other depth is probed for a few rounds, too. Every round saves PROBE_FRAC of its time, shared among
the depths; a probe begins when its depth's savings cover its expected loss. Probes are frequent where they cost nothing, never stop, and
cost about PROBE_FRAC in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from statistics import median, median_low
from typing import Literal

from forerun.decode.draft_stats import MAX_DEPTH, Round

PROBE_FRAC = 0.01
PROBE_ROUNDS = 3  # the first of them is not timed
PROBE_GAP_ROUNDS = 16
BETTER_BY = 1.02
AUTO_DEPTH = 3
MIN_CONTEXT_TOKENS = 1024
WARN_ROUNDS, WARN_AFTER, WARN_BELOW = 200, 20, 0.05
WARNING = (
    f"fewer than {WARN_BELOW:.0%} of the last rounds with drafts had one accepted: the draft head may be damaged, "
    "may belong to other weights, or was not trained on such text"
)


class Acceptance:
    """The chance that a draft is accepted if all before it were, by depth. About the last 50 rounds count: it adapts fast.

    A depth that was never reached is expected to be accepted as often as the one before it.

    is_failing: of the last WARN_ROUNDS rounds with drafts, at least WARN_AFTER, less than WARN_BELOW had one accepted. WARN_AFTER is small,
    so that a head that is never right is dropped within few rounds, and then only probed.
    """

    PRIOR, PRIOR_ROUNDS, KEEP = 0.6, 2.0, 0.98

    def __init__(self) -> None:
        self.chances = [self.PRIOR] * MAX_DEPTH
        self._weights = [self.PRIOR_ROUNDS] * MAX_DEPTH
        self._num_reached = 1
        self._recent: deque[bool] = deque(maxlen=WARN_ROUNDS)
        self.is_failing = False

    def observe(self, drafted: int, accepted: int) -> None:
        """Update from a round."""
        if drafted:
            self._recent.append(accepted > 0)
        self.is_failing = len(self._recent) >= WARN_AFTER and sum(self._recent) < WARN_BELOW * len(self._recent)
        self._weights = [max(self.PRIOR_ROUNDS, self.KEEP * weight) for weight in self._weights]
        num_verified = min(drafted, accepted + 1)
        for i in range(num_verified):
            self._weights[i] += 1
            self.chances[i] += ((i < accepted) - self.chances[i]) / self._weights[i]
        self._num_reached = max(self._num_reached, num_verified)
        self.chances[self._num_reached :] = [self.chances[self._num_reached - 1]] * (MAX_DEPTH - self._num_reached)

    def expected_tokens(self) -> list[float]:
        """Expected tokens per round, by depth 0..MAX_DEPTH."""
        tokens, reach = [1.0], 1.0
        for chance in self.chances:
            reach *= chance
            tokens.append(tokens[-1] + reach)
        return tokens

    def elsewhere(self) -> Acceptance:
        """A copy for contexts of another length, that a few rounds there change."""
        acceptance = Acceptance()
        acceptance.chances, acceptance._num_reached = self.chances.copy(), self._num_reached
        return acceptance


class Times:
    """The time of a round by depth, relative to the rounds of the depth in use, for contexts of about one length.

    The depth in use sets the pace, since a slower machine or a longer context slows all depths; a probe measures its depth against it.
    Both are medians: single rounds are much slower, by other work on the machine or since a step is traced.
    """

    PRIOR_PER_DRAFT, SAMPLES, PACE_ROUNDS = 0.5, 4, 5

    def __init__(self) -> None:
        self.ratios = [1 + self.PRIOR_PER_DRAFT * depth for depth in range(MAX_DEPTH + 1)]
        self._samples: list[deque[float]] = [deque(maxlen=self.SAMPLES) for _ in self.ratios]
        self._paces = deque[float](maxlen=self.PACE_ROUNDS)

    def is_known(self, depth: int) -> bool:
        """Whether this depth was timed in a probe."""
        return len(self._samples[depth]) > 0

    def is_measured(self, depth: int) -> bool:
        """Whether this depth was timed in more than one probe: a single one may coincide with a burst of other work."""
        return len(self._samples[depth]) >= PROBE_ROUNDS

    @property
    def has_pace(self) -> bool:
        """Whether a probe has enough rounds to be measured against."""
        return len(self._paces) == self.PACE_ROUNDS

    def observe(self, depth: int, seconds: float, *, is_probe: bool) -> None:
        """Update from a round. A deeper draft that was never timed is expected to cost as much as the last one timed."""
        if not is_probe:
            self._paces.append(seconds / self.ratios[depth])
            return
        self._samples[depth].append(seconds / median(self._paces))
        self.ratios[depth] = median_low(self._samples[depth])
        for deeper in range(depth + 1, MAX_DEPTH + 1):
            if depth and not self.is_known(deeper):
                self.ratios[deeper] = self.ratios[deeper - 1] + max(self.ratios[depth] - self.ratios[depth - 1], 0.0)

    def elsewhere(self) -> Times:
        """A copy for contexts of another length: the ratios hold there until they are measured, the pace does not."""
        times = Times()
        times.ratios, times._samples = self.ratios.copy(), deepcopy(self._samples)
        return times


@dataclass(slots=True)
class Evidence:
    """What was measured at contexts of about one length, with one kind of sampling."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    times: Times = field(default_factory=Times)

    def rates(self) -> list[float]:
        """Expected tokens per unit of time, by depth."""
        return [tokens / ratio for tokens, ratio in zip(self.acceptance.expected_tokens(), self.times.ratios, strict=True)]

    def elsewhere(self) -> Evidence:
        """What it says of contexts of another length."""
        return Evidence(self.acceptance.elsewhere(), self.times.elsewhere())


class DepthPolicy:
    """Chooses among `choices`, ascending depths; with one choice it is a fixed depth. acceptance: of all rounds, for the warning."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.acceptance = Acceptance()
        self._choices = tuple(choices)
        self._evidence: dict[tuple[str, int], Evidence] = {}
        self._batches: dict[int, DepthPolicy] = {}
        self._depth = self._probe = choices[0]
        self._probe_rounds = 0
        self._probe_order = list(choices)
        self._savings = dict.fromkeys(choices, 0.0)

    @property
    def deepest(self) -> int:
        """The largest depth that may be chosen."""
        return self._choices[-1]

    def choose_all(self, kinds: Sequence[str], context_tokens: Sequence[int], limits: Sequence[int]) -> list[int]:
        """The depths of a round of several sequences, each at most its limit. kinds: of their sampling.

        Sequences compete for the rows of a pass, so what pays is learned by their number: the fuller the batch, the shallower.
        """
        depth = self._of(len(limits)).choose(max(context_tokens), max(limits), _common(kinds))
        return [min(depth, limit) for limit in limits]

    def observe_all(self, kinds: Sequence[str], context_tokens: Sequence[int], done: Sequence[Round]) -> None:
        """Update from a round with the depths of `choose_all`. Its time counts where all sequences drafted as much."""
        policy, deepest = self._of(len(done)), max(done, key=lambda r: r.drafted)
        others = [r for r in done if r is not deepest]
        is_uniform = all(r.drafted == deepest.drafted for r in others)
        policy.observe(max(context_tokens), deepest if is_uniform else replace(deepest, seconds=None), _common(kinds), others)

    def _of(self, num: int) -> DepthPolicy:
        """The policy of batches of about this many sequences: 1, 2, 3 to 4, 5 to 8 and so on."""
        if num == 1:
            return self
        size = (num - 1).bit_length()
        if size not in self._batches:
            self._batches[size] = DepthPolicy(self._choices)
            self._batches[size].acceptance = self.acceptance
        return self._batches[size]

    def choose(self, context_tokens: int, limit: int, kind: str = "") -> int:
        """The depth of the next round, at most `limit`. context_tokens: the length attended to; kind: of sampling. Changes nothing."""
        return min(self._probe if self._probe_rounds else self._best(self._evidence_at(context_tokens, kind)), limit)

    def observe(self, context_tokens: int, done: Round, kind: str = "", others: Sequence[Round] = ()) -> None:
        """Update from a round with the depth of `choose` for the same context and kind, and plan the next one. others: further sequences'
        parts in the same round.
        """
        here, is_probe = self._evidence_at(context_tokens, kind), self._probe_rounds > 0 and done.drafted == self._probe
        for part in (*others, done):
            self.acceptance.observe(part.drafted, part.accepted)
            here.acceptance.observe(part.drafted, part.accepted)
        if done.seconds is not None and (here.times.has_pace or not is_probe):
            here.times.observe(done.drafted, done.seconds, is_probe=is_probe)
        if is_probe:
            self._probe_rounds -= 1
        if not self._probe_rounds:
            self._plan(here)

    def _plan(self, here: Evidence) -> None:
        """Choose the best depth, add to the savings for probes, and begin the first probe in order that is due."""
        self._depth = self._best(here)
        for depth in self._choices:
            self._savings[depth] += PROBE_FRAC * here.times.ratios[self._depth] / len(self._choices)
        due = next((depth for depth in self._probe_order if self._is_due(depth, here)), None)
        if due is not None:
            self._probe_order.remove(due)
            self._probe_order.append(due)
            self._savings[due], self._probe, self._probe_rounds = 0.0, due, PROBE_ROUNDS

    def _is_due(self, depth: int, here: Evidence) -> bool:
        """Whether to probe this depth: once the savings cover it. A neighbour that is not measured need not wait for savings: what lies
        above if nothing is to be lost, what lies below in any case, since drafts that do not pay cost more with every round.
        """
        if depth == self._depth or not here.times.has_pace:
            return False
        is_new, loss = abs(depth - self._depth) == 1 and not here.times.is_measured(depth), self._loss(depth, here)
        if is_new and (depth < self._depth or loss <= 0):
            return True
        return self._savings[depth] >= max(loss, PROBE_FRAC * PROBE_GAP_ROUNDS)

    def _loss(self, probe: int, here: Evidence) -> float:
        """Time that a probe is expected to lose against the depth in use."""
        used = here.times.ratios[probe] - here.acceptance.expected_tokens()[probe] / here.rates()[self._depth]
        return PROBE_ROUNDS * used

    def _best(self, here: Evidence) -> int:
        """The depth in use, unless another that was timed is clearly better."""
        rates = here.rates()
        timed = [depth for depth in self._choices if depth == self._depth or here.times.is_known(depth)]
        best = max(timed, key=rates.__getitem__)
        return best if rates[best] > BETTER_BY * rates[self._depth] else self._depth

    def _evidence_at(self, context_tokens: int, kind: str) -> Evidence:
        """The evidence for contexts between two powers of two and this kind of sampling; initially what the nearest says."""
        key = kind, max(context_tokens, MIN_CONTEXT_TOKENS).bit_length()
        if key not in self._evidence:
            nearest = min(self._evidence, key=lambda other: (other[0] != kind, abs(other[1] - key[1])), default=None)
            self._evidence[key] = Evidence() if nearest is None else self._evidence[nearest].elsewhere()
        return self._evidence[key]


def _common(kinds: Sequence[str]) -> str:
    return kinds[0] if len(set(kinds)) == 1 else "mixed"


def policy_for(setting: int | Literal["auto"]) -> DepthPolicy:
    """The policy of a setting: a depth that never changes, or the best of 0 to AUTO_DEPTH."""
    return DepthPolicy(range(AUTO_DEPTH + 1) if setting == "auto" else (setting,))
