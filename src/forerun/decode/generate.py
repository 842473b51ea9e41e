"""One answer: rounds until a stop token, a stop string, the length limit or the caller ends it. Keeps cache and emitted tokens in sync.

Knows tokens and text of one sequence; nothing of requests, tiers or dialects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.decode.draft_stats import DraftStats
from forerun.decode.round import Rounds
from forerun.decode.scores import Score
from forerun.state.cache import Cache
from forerun.text.answer import Answer
from forerun.values import Finish, Sampling


class Generation:
    """Iterate for the answer's text, one piece per round; then `finish` is why it ended and `store` returns the tokens in the cache.

    answer: its text. tokens: the answer's tokens, without the stop token; sampled: with it. draft_stats: of all rounds so far.
    num_top: see Rounds; scores: of `sampled`, if requested.
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
    ) -> None:
        self._rounds = Rounds(steps, cache, prompt, sampling, num_top=num_top)
        self.answer, self._cache, self._prompt = answer, cache, prompt
        self._max_tokens, self._stop_ids, self._policy = max_tokens, stop_ids, policy
        self._shown = cache.snapshot()  # after the last token that the client saw
        self._text = ""
        self.draft_stats = DraftStats()
        self.tokens: list[int] = []
        self.scores: list[Score] = []
        self.sampled: list[int] = []
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[str]:
        """The caller may stop at any piece and then call `store`. With max_tokens 0 there are no pieces."""
        if self._max_tokens == 0:
            self.finish = "length"
            return
        self._take([self._rounds.first()])
        yield self._piece()
        while self.finish is None:
            self._round()
            if self.answer.emitted_tokens == len(self.tokens):
                self._shown = self._cache.snapshot()
            yield self._piece()

    @property
    def num_sampled(self) -> int:
        return len(self.sampled)

    @property
    def num_shown(self) -> int:
        """How many of `tokens` the client saw: all, unless a stop string cut them."""
        return self.answer.emitted_tokens if self.answer.is_stopped else len(self.tokens)

    def store(self) -> list[int]:
        """Truncate the cache to the emitted tokens and complete its draft rows. Returns the prompt and answer tokens that it now holds."""
        if self._cache.length > len(self._prompt) + self.num_shown:
            self._cache.truncate(self._shown)
        self._rounds.complete_draft_rows()
        return [*self._prompt, *self.tokens][: self._cache.length]

    def _round(self) -> None:
        """One round, at a depth fixed before anything is drawn. The policy does not observe a failed round."""
        length = self._cache.length
        result = self._rounds.run(self._policy.choose(length, self._max_tokens - len(self.tokens) - 1), self._take)
        self.draft_stats.add(result)
        self._policy.observe(length, result)

    def _take(self, tokens: list[int]) -> int:
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
        self._rounds.append(tokens[:taken])
        self.scores += self._rounds.scores[:taken]
        if not self.answer.is_stopped:
            return taken
        return min(taken, max(0, self.answer.emitted_tokens - before + 1))

    def _piece(self) -> str:
        if self.finish is not None and not self.answer.is_stopped:
            self._text += self.answer.flush()
        text, self._text = self._text, ""
        return text
