"""A round: draft up to k tokens with the model's own head, verify them in one forward of k + 1 rows, emit the accepted and one more.

Depth 0 is plain decoding by the same arithmetic. Drafted rows are never part of the state: kept rows come from target hidden vectors.
Knows one sequence; nothing of text, stops or requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from forerun.decode.compiled import MAX_WIDTH, StepTable
from forerun.decode.draft_stats import Round
from forerun.decode.prefill import prime
from forerun.decode.scores import Score, scores
from forerun.errors import NumericsError
from forerun.sampling.distribution import Counts, count_prompt, distribution, has_penalty, is_finite
from forerun.sampling.draw import draw, draw_coupled
from forerun.sampling.logprobs import Logprobs, logprobs
from forerun.sampling.noise import fresh_seed, gumbel, uniforms
from forerun.sampling.verify import verify, verify_coupled
from forerun.state.cache import Cache, View, lend
from forerun.values import Sampling

PRIME_ROWS = 64


class Rounds:
    """The rounds of one answer. The last appended token is not yet in the cache: cache.length == prompt + appended - 1.

    Draft rows lag behind: `_hidden` and `_tokens` are the target hidden vectors and tokens of rows draft_length, draft_length + 1, ...
    num_top: number of likeliest tokens in `scores`, None for no scores. scores: of the tokens of the last `first` or `run`.
    """

    def __init__(
        self, steps: StepTable, cache: Cache[Any], prompt: Sequence[int], sampling: Sampling, *, num_top: int | None = None
    ) -> None:
        self._steps, self._family, self._cache, self._sampling = steps, steps.family, cache, sampling
        self._is_coupled = sampling.seed is not None and sampling.temperature > 0
        self._num_top, self.scores = num_top, list[Score]()
        self._seed = sampling.seed if sampling.seed is not None else fresh_seed()
        self._counts = count_prompt(mx.array(list(prompt), dtype=mx.int32), self._family.vocab) if has_penalty(sampling) else None
        self._hidden = [cache.hidden[None]]
        self._tokens: list[int] = []
        self._last = -1
        self._depth_before: int | None = None

    def first(self) -> int:
        """The first token, from the last hidden vector of the cache: no forward."""
        logits = self._family.head(self._cache.hidden[None])
        return self._emit(logits, self._verdict(logits, None, mx.zeros((0,), dtype=mx.int32), self._cache.length))[0]

    def append(self, tokens: Sequence[int]) -> None:
        """Append to the answer the first tokens of the last `first` or `run`."""
        if self._cache.spec.draft_layers:
            self._tokens += tokens
        self._last = tokens[-1]
        if self._counts is not None:
            self._counts = self._counts.extended(mx.array(list(tokens), dtype=mx.int32))

    def run(self, depth: int, take: Callable[[list[int]], int]) -> Round:
        """One round. `take` gets the emitted tokens and returns how many rows become state: at most as many as tokens it took."""
        start_s, length = time.perf_counter(), self._cache.length
        with lend([self._cache], self._family.numerics) as view:
            drafts, distributions = self._draft(view, depth)
            ids = mx.concatenate([mx.array([self._last], dtype=mx.int32), drafts])
            hidden = self._steps.forward(ids, self._cache, view)
            logits = self._family.head(hidden)
            tokens = self._emit(logits, self._verdict(logits, distributions, drafts, length + 1))
            rows = take(tokens)
            view.keep([rows], hidden)
            if self._cache.spec.draft_layers:
                self._hidden.append(hidden[:rows])
            # The next draft begins with the last token's row; after a stop string, tokens may have no row at all.
            if self._num_lagging >= PRIME_ROWS:
                self._prime(view, self._num_lagging)
        is_measure, self._depth_before = depth == self._depth_before, depth
        return Round(tokens, depth, len(tokens) - 1, time.perf_counter() - start_s if is_measure else None)

    def complete_draft_rows(self) -> None:
        """Compute the draft rows that lag behind, so that the cache can be stored. No round may follow."""
        if self._num_lagging > 0:
            with lend([self._cache], self._family.numerics) as view:
                self._prime(view, self._num_lagging)
        self._cache.draft_length = self._cache.length

    @property
    def _num_lagging(self) -> int:
        return self._cache.length - self._cache.draft_length

    def _prime(self, view: View, rows: int) -> mx.array:
        """Compute the first `rows` draft rows that lag behind: many as in prefill, few as a step."""
        hidden = mx.concatenate(self._hidden) if len(self._hidden) > 1 else self._hidden[0]
        tokens = mx.array(self._tokens[:rows], dtype=mx.int32)
        if rows > MAX_WIDTH:
            drafted = prime(self._family, view, hidden[:rows], tokens)
        else:
            drafted = self._steps.draft(hidden[:rows], tokens, self._cache, view)
            view.keep_draft([rows])
        self._hidden, self._tokens = [hidden[rows:]], self._tokens[rows:]
        return drafted

    def _draft(self, view: View, depth: int) -> tuple[mx.array, mx.array | None]:
        """`depth` drafts [depth] int32 and the distributions [depth, vocab] that they were drawn from."""
        drafts = mx.zeros((0,), dtype=mx.int32)
        if depth == 0:
            return drafts, None
        distributions = []
        hidden = self._prime(view, len(self._tokens))[-1:]
        for i in range(depth):
            probs = distribution(self._family.head(hidden), self._sampling, self._drafted(drafts))
            token = self._draw(probs, self._cache.length + 1 + i)
            distributions.append(probs)
            drafts = mx.concatenate([drafts, token])
            if i + 1 < depth:
                hidden = self._steps.draft(hidden, token, self._cache, view)
        view.keep_draft([0])
        return drafts, mx.concatenate(distributions)

    def _draw(self, probs: mx.array, position: int) -> mx.array:
        at = mx.array([position], dtype=mx.int32)
        if self._is_coupled:
            return draw_coupled(probs, gumbel(self._seed, at, self._family.vocab))
        return draw(probs, uniforms(self._seed, at, "draft"))

    def _drafted(self, drafts: mx.array) -> Counts | None:
        return self._counts._replace(drafts=drafts) if self._counts is not None else None

    def _verdict(self, logits: mx.array, distributions: mx.array | None, drafts: mx.array, position: int) -> tuple[mx.array, ...]:
        """accepted, token, drafts and finiteness, lazily. logits [depth + 1, vocab]: for the tokens at position, position + 1, ..."""
        depth = drafts.shape[0]
        target = distribution(logits, self._sampling, self._drafted(drafts))[None]
        distributions = distributions if distributions is not None else target[0, :0]
        at = mx.arange(position, position + depth + 1, dtype=mx.int32)
        if self._is_coupled:
            verdict = verify_coupled(target, drafts[None], gumbel(self._seed, at, self._family.vocab)[None])
        else:
            # "next" is keyed by the round's first position, which no two rounds share: no number is used twice.
            u_accept, u_next = uniforms(self._seed, at[:depth], "accept"), uniforms(self._seed, at[:1], "next")
            verdict = verify(target, distributions[None], drafts[None], u_accept[None], u_next)
        finite = mx.all(mx.concatenate([is_finite(logits), is_finite(target[0]), is_finite(distributions)]))
        return verdict.accepted, verdict.token, drafts, finite

    def _emit(self, logits: mx.array, verdict: tuple[mx.array, ...]) -> list[int]:
        """The accepted drafts and the next token: the round's one host synchronisation. Sets their scores."""
        accepted, token, drafts, finite = verdict
        requested = self._logprobs(logits, accepted, token, drafts)
        mx.eval(verdict, requested)
        if not finite.item():
            raise NumericsError("the model produced logits that are not numbers", hint="the weights may be damaged")
        count = int(np.array(accepted)[0])
        self.scores = scores(requested)[: count + 1] if requested else []
        return [*np.array(drafts)[:count].tolist(), int(np.array(token)[0])]

    def _logprobs(self, logits: mx.array, accepted: mx.array, token: mx.array, drafts: mx.array) -> Logprobs | None:
        """Of the emitted tokens, in the first accepted + 1 rows; other rows are ignored. None: not requested."""
        if self._num_top is None:
            return None
        drafted = mx.arange(logits.shape[0]) < accepted
        tokens = mx.where(drafted, mx.pad(drafts, (0, 1)), token)
        return logprobs(logits, tokens, self._num_top)
