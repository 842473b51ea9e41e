"""Draws of one round for sequences that share depth and sampling: drafts, then their verification, a row of arithmetic for each sequence.

Pure and lazy apart from what a group collects. Knows nothing of caches, passes or stops.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from forerun.decode.grammar_mask import GrammarMask
from forerun.grammar.matcher import Matcher
from forerun.kernels.largest import largest_ids
from forerun.sampling.distribution import Counts, adjusted, distribution, is_finite
from forerun.sampling.draw import draw, draw_coupled
from forerun.sampling.logprobs import Logprobs, logprobs
from forerun.sampling.noise import gumbel, uniforms
from forerun.sampling.verify import Verdict, verify, verify_chosen
from forerun.values import Sampling


class Draw(NamedTuple):
    """How a sequence's tokens are drawn. sampling: without its seed; seed: of the noise. is_coupled: drafts share the target's noise.

    counts: for penalties, else None. num_top: number of likeliest tokens that are reported, None for no log-probabilities. matcher: of the
    grammar that the tokens follow, None for none.
    """

    sampling: Sampling
    is_coupled: bool
    seed: int
    counts: Counts | None
    num_top: int | None
    matcher: Matcher | None = None

    @property
    def kind(self) -> str:
        """Draws of one kind have drafts accepted about as often."""
        temperature = self.sampling.temperature
        heat = "greedy" if temperature == 0 else "cool" if temperature <= 0.5 else "warm" if temperature <= 1 else "hot"
        return f"{heat}, coupled" if self.is_coupled else heat


class Outcome(NamedTuple):
    """For each sequence [b] of a group: its verdict, drafts [b, depth] int32, whether all its numbers are finite, and log-probabilities.

    errors: what its grammar raised, by sequence.
    """

    verdict: Verdict
    drafts: mx.array
    finite: mx.array
    logprobs: Logprobs | None
    errors: Mapping[int, Exception]

    def arrays(self) -> list[mx.array]:
        """To evaluate."""
        return [*self.verdict, self.drafts, self.finite, *(self.logprobs or ())]

    def on_host(self) -> Drawn:
        """Evaluated and copied, all at once."""
        accepted, token, drafts, finite = (np.array(x) for x in (*self.verdict, self.drafts, self.finite))
        tokens = [[*row[:count], last] for row, count, last in zip(drafts.tolist(), accepted.tolist(), token.tolist(), strict=True)]
        return Drawn(tokens, finite.tolist(), self.logprobs, drafts.shape[1] + 1, self.errors)


class Drawn(NamedTuple):
    """On the host, for each sequence of a group: the accepted drafts and the next token; whether all its numbers are finite.

    logprobs: of all rows, `rows` of each sequence, if requested. errors: what its grammar raised, by sequence.
    """

    tokens: list[list[int]]
    is_finite: list[bool]
    logprobs: Logprobs | None
    rows: int
    errors: Mapping[int, Exception]


@dataclass(slots=True)
class DrawGroup:
    """draws, last, positions: of each sequence, its last token and the position after it. Penalties allow one sequence only.

    drafts [b, drafted] int32; drafted_from: the distributions [b, vocab] of each. finite: of all numbers so far, which sequences' are [b].
    forced: drafts that a grammar makes without the head, as many for each sequence. mask: of the grammars, None without.
    """

    depth: int
    draws: list[Draw]
    last: list[int]
    positions: list[int]
    forced: list[list[int]] = field(default_factory=list)
    drafts: mx.array = field(init=False)
    mask: GrammarMask | None = field(init=False)
    drafted_from: list[mx.array] = field(default_factory=list)
    finite: list[mx.array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drafts = mx.array(self.forced, dtype=mx.int32).reshape(len(self.draws), -1)
        matchers = [draw.matcher for draw in self.draws if draw.matcher is not None]
        self.mask = GrammarMask(matchers) if matchers else None

    def draft(self, logits: mx.array) -> mx.array:
        """Draw one draft each from the logits [b, vocab] of the draft head. Returns them, [b] int32."""
        at, allowed = self._positions(self.drafts.shape[1], 1), self.mask.next_row(logits, self.drafts) if self.mask else None
        if self.is_chosen:
            tokens = self._chosen(logits, at, allowed)[:, 0]
        else:
            probs = self._distribution(logits, allowed)
            tokens = draw(probs, uniforms(self._seeds, at, "draft")[:, 0])
            self.drafted_from.append(probs)
        self.drafts = mx.concatenate([self.drafts, tokens[:, None]], axis=1)
        return tokens

    def rows(self) -> mx.array:
        """The tokens [b * (depth + 1)] int32 of the pass that verifies the drafts: the last one and the drafts of each sequence."""
        return mx.concatenate([mx.array(self.last, dtype=mx.int32)[:, None], self.drafts], axis=1).reshape(-1)

    def verify(self, logits: mx.array) -> Outcome:
        """Accepted drafts and the next tokens from the target's logits [b * (depth + 1), vocab]."""
        at = self._positions(0, self.depth + 1)
        allowed = self.mask.rows(logits, self.drafts) if self.mask else None
        if self.is_chosen:
            verdict = verify_chosen(self._chosen(logits, at, allowed), self.drafts)
        else:
            target = self._distribution(logits, allowed).reshape(len(self.draws), -1, logits.shape[-1])
            drafted_from = self._drafted_from(target)
            # "next" is keyed by the round's first position, which no two rounds share: no number is used twice.
            u_accept, u_next = uniforms(self._seeds, at[:, : self.depth], "accept"), uniforms(self._seeds, at[:, :1], "next")
            verdict = verify(target, drafted_from, self.drafts, u_accept, u_next[:, 0])
        self._check(logits)
        errors = self.mask.errors if self.mask else {}
        return Outcome(verdict, self.drafts, mx.stack(self.finite).all(axis=0), self._logprobs(logits, verdict), errors)

    @property
    def is_chosen(self) -> bool:
        """Whether each row's token is a function of its logits and position, at temperature 0 or with shared noise: drafts are compared."""
        return self._common.is_coupled or self._common.sampling.temperature == 0

    def _drafted_from(self, target: mx.array) -> mx.array:
        """The distributions [b, depth, vocab] of the drafts; of forced ones all is on the token."""
        if self.forced:
            return (self.drafts[..., None] == mx.arange(target.shape[-1])).astype(target.dtype)
        return mx.stack(self.drafted_from, axis=1) if self.drafted_from else target[:, :0]

    def _chosen(self, logits: mx.array, at: mx.array, allowed: mx.array | None) -> mx.array:
        """The tokens [b, n] int32 of logits [b * n, vocab] for the positions `at` [b, n]."""
        if self._common.is_coupled:
            probs = self._distribution(logits, allowed).reshape(*at.shape, -1)
            return draw_coupled(probs, gumbel(self._seeds, at, probs.shape[-1]))
        logits = adjusted(logits, self._common.sampling, self._counts(), allowed)
        self._check(logits)
        return largest_ids(logits, 1).astype(mx.int32).reshape(at.shape)

    def _distribution(self, logits: mx.array, allowed: mx.array | None) -> mx.array:
        probs = distribution(logits, self._common.sampling, self._counts(), allowed)
        self._check(probs)
        return probs

    def _check(self, rows: mx.array) -> None:
        """Note which sequences' rows [b * n, vocab] are finite."""
        self.finite.append(is_finite(rows).reshape(len(self.draws), -1).all(axis=1))

    @property
    def _common(self) -> Draw:
        return self.draws[0]

    @property
    def _seeds(self) -> list[int]:
        return [draw.seed for draw in self.draws]

    def _counts(self) -> Counts | None:
        counts = self._common.counts
        return counts._replace(drafts=self.drafts[0]) if counts is not None else None

    def _positions(self, start: int, num: int) -> mx.array:
        """[b, num] int32: of the tokens drawn after the first `start` of the round."""
        return mx.array(self.positions, dtype=mx.int32)[:, None] + mx.arange(start, start + num, dtype=mx.int32)

    def _logprobs(self, logits: mx.array, verdict: Verdict) -> Logprobs | None:
        """Of the emitted tokens, in the first accepted + 1 rows of each sequence; other rows are ignored."""
        if self._common.num_top is None:
            return None
        drafted = mx.arange(self.depth + 1) < verdict.accepted[:, None]
        tokens = mx.where(drafted, mx.pad(self.drafts, [(0, 0), (0, 1)]), verdict.token[:, None])
        return logprobs(logits, tokens.reshape(-1), self._common.num_top)


def grouped(draws: Sequence[Draw], depths: Sequence[Hashable]) -> list[list[int]]:
    """Indices of the sequences that form a group each: equal but for their seeds and grammars; one with penalties is alone.

    depths: of the drafts and of whatever else must agree.
    """
    groups: list[list[int]] = []
    for i, (one, depth) in enumerate(zip(draws, depths, strict=True)):
        group = next((g for g in groups if depths[g[0]] == depth and _draw_alike(draws[g[0]], one)), None)
        if group is None:
            groups.append([i])
        else:
            group.append(i)
    return groups


def _draw_alike(one: Draw, other: Draw) -> bool:
    if one.counts is not None or other.counts is not None or (one.matcher is None) != (other.matcher is None):
        return False
    return one._replace(seed=other.seed, matcher=other.matcher) == other
