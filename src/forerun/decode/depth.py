"""How many tokens to draft: the depth with most tokens per second, from measured acceptance and measured time.

Pure policy: it observes every completed round and chooses the depth of the next one. One object serves all requests of an engine, so that
measurements persist; a cancelled or failed round is not observed. Knows no MLX, no clock and no sequence.

Depth k gives 1 + p1 + p1 p2 + ... + p1..pk tokens a round, where pi is the chance that draft i is accepted if those before it were. A
round's time is measured as a whole, k drafts and a verification of k + 1 rows, since its only synchronisation with the host is at its end.

Acceptance of deeper drafts and times of other depths go stale, so other depths are probed for a few rounds. Every round saves PROBE_FRAC of
its time, shared among the depths; a probe begins when its depth's savings cover its expected loss. Probes are frequent where they cost
nothing, never stop, and cost about PROBE_FRAC in all. Depths that were never timed are probed first, at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from statistics import median_low
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

    is_failing: of the last WARN_ROUNDS rounds with drafts, at least WARN_AFTER, less than WARN_BELOW had one accepted. WARN_AFTER is small,
    so that a head that is never right is dropped within few rounds, and then only probed.
    """

    PRIOR, PRIOR_ROUNDS, KEEP = 0.6, 2.0, 0.98

    def __init__(self) -> None:
        self.chances = [self.PRIOR] * MAX_DEPTH
        self._weights = [self.PRIOR_ROUNDS] * MAX_DEPTH
        self._recent: deque[bool] = deque(maxlen=WARN_ROUNDS)
        self.is_failing = False

    def observe(self, drafted: int, accepted: int) -> None:
        """Update from a round."""
        if drafted:
            self._recent.append(accepted > 0)
        self.is_failing = len(self._recent) >= WARN_AFTER and sum(self._recent) < WARN_BELOW * len(self._recent)
        self._weights = [max(self.PRIOR_ROUNDS, self.KEEP * weight) for weight in self._weights]
        for i in range(min(drafted, accepted + 1)):
            self._weights[i] += 1
            self.chances[i] += ((i < accepted) - self.chances[i]) / self._weights[i]

    def expected_tokens(self) -> list[float]:
        """Expected tokens per round, by depth 0..MAX_DEPTH."""
        tokens, reach = [1.0], 1.0
        for chance in self.chances:
            reach *= chance
            tokens.append(tokens[-1] + reach)
        return tokens


class Times:
    """The time of a round by depth, in units of `pace_s`, for contexts of about one length.

    The depth in use sets the pace, since a slower machine or a longer context slows all depths; a probe measures its depth against it.
    """

    PRIOR_PER_DRAFT, SAMPLES, FOLLOW, LIMIT = 0.5, 4, 0.1, 2.0

    def __init__(self) -> None:
        self.ratios = [1 + self.PRIOR_PER_DRAFT * depth for depth in range(MAX_DEPTH + 1)]
        self._samples: list[deque[float]] = [deque(maxlen=self.SAMPLES) for _ in self.ratios]
        self._pace_s = 0.0

    def is_measured(self, depth: int) -> bool:
        """Whether this depth was timed in more than one probe: a single one may coincide with a burst of other work."""
        return len(self._samples[depth]) >= PROBE_ROUNDS

    def observe(self, depth: int, seconds: float, *, is_probe: bool) -> None:
        """Update from a round. Its deviation from the expected time is limited to a factor of LIMIT: more is other work."""
        self._pace_s = self._pace_s or seconds / self.ratios[depth]
        if is_probe:
            self._samples[depth].append(seconds / self._pace_s)
            self.ratios[depth] = median_low(self._samples[depth])
        else:
            change = seconds / (self._pace_s * self.ratios[depth])
            self._pace_s *= min(max(change, 1 / self.LIMIT), self.LIMIT) ** self.FOLLOW


class DepthPolicy:
    """Chooses among `choices`, ascending depths; with one choice it is a fixed depth."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.acceptance = Acceptance()
        self._choices = tuple(choices)
        self._times: dict[int, Times] = {}
        self._batches: dict[int, DepthPolicy] = {}
        self._depth = self._probe = choices[-1]
        self._probe_rounds = 0
        self._probe_order = list(reversed(choices))
        self._savings = dict.fromkeys(choices, 0.0)

    @property
    def deepest(self) -> int:
        """The largest depth that may be chosen."""
        return self._choices[-1]

    def choose_all(self, context_tokens: Sequence[int], limits: Sequence[int]) -> list[int]:
        """The depths of a round of several sequences, each at most its limit. Changes nothing but what a first look at a number makes.

        Drafts of a batch compete with each other for the rows of a pass, so times are measured by the number of sequences: the fuller the
        batch, the shallower. One sequence alone is `choose`.
        """
        depth = self._of(len(limits)).choose(max(context_tokens), max(limits))
        return [min(depth, limit) for limit in limits]

    def observe_all(self, context_tokens: Sequence[int], done: Sequence[Round]) -> None:
        """Update from a round with the depths of `choose_all`. Its time counts where all sequences drafted as much."""
        policy, deepest = self._of(len(done)), max(done, key=lambda r: r.drafted)
        for other in done:
            if other is not deepest:
                self.acceptance.observe(other.drafted, other.accepted)
        is_uniform = all(r.drafted == deepest.drafted for r in done)
        policy.observe(max(context_tokens), deepest if is_uniform else replace(deepest, seconds=None))

    def _of(self, num: int) -> DepthPolicy:
        """The policy of batches of about this many sequences: 1, 2, 3 to 4, 5 to 8 and so on."""
        if num == 1:
            return self
        size = (num - 1).bit_length()
        if size not in self._batches:
            self._batches[size] = DepthPolicy(self._choices)
            self._batches[size].acceptance = self.acceptance
        return self._batches[size]

    def choose(self, context_tokens: int, limit: int) -> int:
        """The depth of the next round, at most `limit`. context_tokens: the length attended to. Changes nothing."""
        return min(self._probe if self._probe_rounds else self._best(self._times_at(context_tokens)), limit)

    def observe(self, context_tokens: int, done: Round) -> None:
        """Update from a round with the depth of `choose` for the same context, and plan the next one."""
        times, is_probe = self._times_at(context_tokens), self._probe_rounds > 0 and done.drafted == self._probe
        self.acceptance.observe(done.drafted, done.accepted)
        if done.seconds is not None:
            times.observe(done.drafted, done.seconds, is_probe=is_probe)
        if is_probe:
            self._probe_rounds -= 1
        if not self._probe_rounds:
            self._plan(times)

    def _plan(self, times: Times) -> None:
        """Choose the best depth, add to the savings for probes, and begin the first probe in order that is due."""
        self._depth = self._best(times)
        for depth in self._choices:
            self._savings[depth] += PROBE_FRAC * times.ratios[self._depth] / len(self._choices)
        due = next((depth for depth in self._probe_order if self._is_due(depth, times)), None)
        if due is not None:
            self._probe_order.remove(due)
            self._probe_order.append(due)
            self._savings[due], self._probe, self._probe_rounds = 0.0, due, PROBE_ROUNDS

    def _is_due(self, depth: int, times: Times) -> bool:
        """Whether the savings cover a probe of this depth. It is free until the depth is measured; the depth in use needs none."""
        if not times.is_measured(depth):
            return True
        price = max(self._loss(depth, times), PROBE_FRAC * PROBE_GAP_ROUNDS)
        return depth != self._depth and self._savings[depth] >= price

    def _loss(self, probe: int, times: Times) -> float:
        """Time that a probe is expected to lose against the depth in use."""
        used = times.ratios[probe] - self.acceptance.expected_tokens()[probe] / self._rates(times)[self._depth]
        return PROBE_ROUNDS * used

    def _best(self, times: Times) -> int:
        """The depth in use, unless another is clearly better."""
        rates = self._rates(times)
        best = max(self._choices, key=rates.__getitem__)
        return best if rates[best] > BETTER_BY * rates[self._depth] else self._depth

    def _rates(self, times: Times) -> list[float]:
        """Tokens per unit of time, by depth."""
        return [tokens / ratio for tokens, ratio in zip(self.acceptance.expected_tokens(), times.ratios, strict=True)]

    def _times_at(self, context_tokens: int) -> Times:
        """The times for contexts between two powers of two; initially a copy of the nearest."""
        size = max(context_tokens, MIN_CONTEXT_TOKENS).bit_length()
        if size not in self._times:
            nearest = min(self._times, key=lambda other: abs(other - size), default=None)
            self._times[size] = Times() if nearest is None else deepcopy(self._times[nearest])
        return self._times[size]


def policy_for(setting: int | Literal["auto"]) -> DepthPolicy:
    """The policy of a setting: a depth that never changes, or the best of 0 to AUTO_DEPTH."""
    return DepthPolicy(range(AUTO_DEPTH + 1) if setting == "auto" else (setting,))
