"""Assigns the log probabilities of an answer's tokens to its pieces. Knows no MLX and no dialect."""

from __future__ import annotations

from forerun.decode.generate import Generation
from forerun.decode.scores import Score
from forerun.text.tokenizer import Tokenizer
from forerun.values import TokenLogprob, TopToken


def token_logprob(tokenizer: Tokenizer, token: int, score: Score | None) -> TokenLogprob:
    """The token with its score, None for a prompt's first token."""
    logprob, top = score or (None, ())
    return TokenLogprob(tokenizer.token_bytes(token), logprob, tuple(TopToken(tokenizer.token_bytes(id), each) for id, each in top))


class AnswerLogprobs:
    """Assigns each token of one answer, in order, to the first content piece that holds any of its text. Left out: tokens of reasoning and
    calls, with their tags, and those that a stop string cuts.
    """

    def __init__(self, generation: Generation, tokenizer: Tokenizer) -> None:
        self._generation, self._tokenizer = generation, tokenizer
        self._next = self._stop = 0

    def within(self, start: int, stop: int) -> tuple[TokenLogprob, ...]:
        """The tokens of the answer's characters start to stop, which are content; none if logprobs were not requested."""
        ends, first = self._generation.answer.ends, self._next
        while start > self._stop and first < len(ends) and ends[first] <= start:
            first += 1
        self._next, self._stop = first, stop
        while self._next < self._generation.answer.emitted_tokens and self._is_before(stop):
            self._next += 1
        return self._logprobs(first, self._next)

    def rest(self) -> tuple[TokenLogprob, ...]:
        """The tokens after the last content, up to the stop token. Call once the answer has ended."""
        is_cut = self._generation.num_shown < len(self._generation.tokens)  # by a stop string
        return () if is_cut else self._logprobs(self._next, len(self._generation.scores))

    def _is_before(self, stop: int) -> bool:
        """Whether the next token has text before `stop`; a token without text of its own (inside a character) may end there."""
        ends = self._generation.answer.ends
        return ends[self._next] <= stop or self._next == 0 or ends[self._next - 1] < stop

    def _logprobs(self, first: int, last: int) -> tuple[TokenLogprob, ...]:
        sampled = self._generation.sampled
        return tuple(
            token_logprob(self._tokenizer, sampled[i], score) for i, score in enumerate(self._generation.scores[first:last], first)
        )
