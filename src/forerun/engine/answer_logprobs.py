"""Which tokens' probabilities go out with which piece of the answer, as the bytes that clients know. Knows no MLX and no dialect."""

from __future__ import annotations

from forerun.decode.generate import Generation
from forerun.decode.scores import Score
from forerun.text.tokenizer import Tokenizer
from forerun.values import TokenLogprob, TopToken


def token_logprob(tokenizer: Tokenizer, token: int, score: Score | None) -> TokenLogprob:
    """The token with its score; None: it has none."""
    logprob, top = score or (None, ())
    return TokenLogprob(tokenizer.token_bytes(token), logprob, tuple(TopToken(tokenizer.token_bytes(id), each) for id, each in top))


class AnswerLogprobs:
    """Of one answer's tokens, each told once, in order: a token goes with the first content that has any of its text. Tokens of what is no
    content (reasoning, calls, the tags around them) are left out, and those that a stop string cuts through.
    """

    def __init__(self, generation: Generation, tokenizer: Tokenizer) -> None:
        self._generation, self._tokenizer = generation, tokenizer
        self._next = self._stop = 0

    def within(self, start: int, stop: int) -> tuple[TokenLogprob, ...]:
        """Those of the answer's characters from start to stop, which are content. Nothing if scores were not asked for."""
        ends, first = self._generation.answer.ends, self._next
        while start > self._stop and first < len(ends) and ends[first] <= start:
            first += 1
        self._next, self._stop = first, stop
        while self._next < self._generation.answer.emitted_tokens and self._is_before(stop):
            self._next += 1
        return self._told(first, self._next)

    def rest(self) -> tuple[TokenLogprob, ...]:
        """Those after the last content, once the answer has ended; the stop token is the last."""
        is_cut = self._generation.num_shown < len(self._generation.tokens)  # by a stop string
        return () if is_cut else self._told(self._next, len(self._generation.scores))

    def _is_before(self, stop: int) -> bool:
        """Whether the next token has text before `stop`; one without text of its own, as inside a character, may end there."""
        ends = self._generation.answer.ends
        return ends[self._next] <= stop or self._next == 0 or ends[self._next - 1] < stop

    def _told(self, first: int, last: int) -> tuple[TokenLogprob, ...]:
        written = self._generation.sampled
        return tuple(
            token_logprob(self._tokenizer, written[i], score) for i, score in enumerate(self._generation.scores[first:last], first)
        )
