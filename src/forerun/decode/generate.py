"""Answers: rounds until a stop token, a stop string, the length limit or the caller ends each. Keeps cache and emitted tokens in sync.

Knows tokens and text of sequences; nothing of requests, tiers or dialects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.decode.draft_stats import MAX_DEPTH, DraftStats, Round
from forerun.decode.loops import LoopDetector
from forerun.decode.round import Part, Rounds, run_round
from forerun.decode.scores import Score
from forerun.grammar.matcher import Matcher
from forerun.state.cache import Cache, Snapshot
from forerun.text.answer import Answer
from forerun.values import Finish, Sampling

MAX_FORCED = 3  # tokens of a grammar that a round verifies: steps of so many rows are compiled at the start


class Generation:
    """One answer: `begin`, then `decode` rounds until `finish` is why it ended; `store` then returns the tokens in the cache.

    answer: its text. tokens: the answer's tokens, without the stop token; sampled: with it. draft_stats: of all rounds so far.
    loops: ends it when it repeats itself. num_top, matcher: see Rounds; scores: of `sampled`, if requested.
    """

    def __init__(
        self,
        steps: StepTable,
        cache: Cache[Any],
        prompt: Sequence[int],
        sampling: Sampling,
        answer: Answer,
        *,
        max_tokens: int,
        stop_ids: frozenset[int],
        policy: DepthPolicy,
        num_top: int | None = None,
        matcher: Matcher | None = None,
        loops: LoopDetector | None = None,
    ) -> None:
        self.rounds = Rounds(steps, cache, prompt, sampling, num_top=num_top, matcher=matcher)
        self.steps, self.policy, self.answer, self._loops = steps, policy, answer, loops
        self._prompt, self._max_tokens, self._stop_ids = prompt, max_tokens, stop_ids
        self._shown = cache.snapshot()  # after the last token that the client saw
        self._text = ""
        self.draft_stats = DraftStats()
        self.tokens: list[int] = []
        self.scores: list[Score] = []
        self.sampled: list[int] = []
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[str]:
        """The text of the answer decoded alone, one piece per round. With max_tokens 0 there are no pieces. Raises what ends it.

        The caller may stop at any piece and then call `store`.
        """
        self.begin()
        if self._max_tokens:
            yield self.piece()
        while self.finish is None:
            (result,) = decode([self])
            if isinstance(result, Exception):
                raise result
            yield self.piece()

    def begin(self) -> None:
        """The first token, which needs no forward. Raises NumericsError."""
        if self._max_tokens == 0:
            self.finish = "length"
        else:
            self.take([self.rounds.first()])

    @property
    def cache(self) -> Cache[Any]:
        """The sequence's state."""
        return self.rounds.cache

    @property
    def limit(self) -> int:
        """How many tokens of a round before the last may still be emitted: more drafts are of no use."""
        return self._max_tokens - len(self.tokens) - 1

    @property
    def resumable_at(self) -> set[int]:
        """Where `resume` needs a snapshot, to cut the answer as the client saw it."""
        return {self._shown.position}

    def found(self, snapshots: Sequence[Snapshot]) -> None:
        """Take over those of `resumable_at`, of a cache that is computed again."""
        self._shown = next((s for s in snapshots if s.position == self._shown.position), self._shown)

    def resume(self, cache: Cache[Any]) -> None:
        """Continue in a new cache, the state before the last token: that of the old one was lost."""
        self.rounds.resume(cache)
        if self._shown.position == cache.length:
            self._shown = cache.snapshot()

    def part(self, depth: int) -> Part:
        """Its part in a round with `depth` drafts, or with as many or more that the grammar determines."""
        forced = self.rounds.forced(min(self.limit, MAX_FORCED))
        is_forced = len(forced) >= max(depth, 1)
        return Part(self.rounds, len(forced), self.take, forced) if is_forced else Part(self.rounds, depth, self.take)

    def note(self, result: Round) -> None:
        """Count a round that was taken."""
        self.draft_stats.add(result)
        if self.answer.may_be_cut and self.answer.emitted_tokens == len(self.tokens):
            self._shown = self.cache.snapshot()

    def piece(self) -> str:
        """The text since the last piece."""
        if self.finish is not None and not self.answer.is_stopped:
            self._text += self.answer.flush()
        text, self._text = self._text, ""
        return text

    @property
    def num_sampled(self) -> int:
        return len(self.sampled)

    @property
    def num_shown(self) -> int:
        """How many of `tokens` the client saw: all, unless a stop string cut them."""
        return self.answer.emitted_tokens if self.answer.is_stopped else len(self.tokens)

    def store(self) -> list[int]:
        """Truncate the cache to the emitted tokens and complete its draft rows. Returns the prompt and answer tokens that it now holds."""
        if self.cache.length > len(self._prompt) + self.num_shown:
            self.cache.truncate(self._shown)
        self.rounds.complete_draft_rows()
        self.cache.own()
        return [*self._prompt, *self.tokens][: self.cache.length]

    def take(self, tokens: list[int]) -> int:
        """Append tokens up to the end of the answer. Returns how many rows of the round may become state."""
        before, taken = len(self.tokens), 0
        for token in tokens:
            taken += 1
            self.sampled.append(token)
            if token in self._stop_ids:
                self.finish = "stop"
                break
            self.tokens.append(token)
            self._text += self.answer.push(token)
            if self.answer.is_stopped or len(self.tokens) >= self._max_tokens:
                self.finish = "stop" if self.answer.is_stopped else "length"
                break
            if self._loops and self._loops.push(token):
                self.finish = "loop"
                break
        self.rounds.append(tokens[:taken])
        self.scores += self.rounds.scores[:taken]
        if not self.answer.is_stopped:
            return taken
        return min(taken, max(0, self.answer.emitted_tokens - before + 1))


def decode(generations: Sequence[Generation], max_depth: int = MAX_DEPTH) -> list[Round | Exception]:
    """One round of all, at depths fixed before anything is drawn: of each its result, or the exception that ends it alone.

    They share steps and policy. Raises what the pass raises: then the caches of all are broken. The policy does not observe a failure.
    """
    policy, kinds = generations[0].policy, [g.rounds.draw.kind for g in generations]
    contexts = [g.cache.length for g in generations]
    depths = policy.choose_all(kinds, contexts, [min(g.limit, max_depth) for g in generations])
    parts = [g.part(depth) for g, depth in zip(generations, depths, strict=True)]
    results = run_round(generations[0].steps, parts)
    for generation, result in zip(generations, results, strict=True):
        if isinstance(result, Round):
            generation.note(result)
    rounds = [result for result in results if isinstance(result, Round)]
    if len(rounds) == len(results) and not any(r.is_forced for r in rounds):
        policy.observe_all(kinds, contexts, rounds)
    return results
