"""A family whose next tokens are scripted, with real cache rows and a long context. For tests of what stands around a model.

Its state checks itself: what a recurrent array has summed up of all tokens must be what attention sees in their rows, in the target and in
the draft layer. A row that is lost, moved or stale is an AssertionError at the next token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import numpy as np

from forerun.kernels.numerics import EXACT
from forerun.kernels.row_span import joined_rows, split_rows
from forerun.kernels.states import Arrays, States
from forerun.state.cache import View
from forerun.state.spec import ArraySpec, AttentionSpec, RecurrentSpec, StateSpec

# (position of the token to come, the token before it, the sum of all weights before it) -> the token.
Script = Callable[[int, int, int], int]

DIM = 8
POSITION, TOKEN, SUM, LATER, IS_DRAFT, SEEN = range(6)  # of a hidden vector


def after(prompt_tokens: int, answer: Sequence[int], then: int) -> Script:
    """`answer` after a prompt of this length, and `then` for ever; in the prompt too."""
    return lambda position, token, total: answer[i] if 0 <= (i := position - prompt_tokens) < len(answer) else then


def scattered(vocab: int) -> Script:
    """A function of all tokens so far that looks random."""
    return lambda position, token, total: (total * 31 + position * 17 + token * 7 + 3) % vocab


class FakeFamily:
    """Predicts the tokens of `script`. The draft head is wrong at every `wrong_every`-th position. before_pass: called with the number
    of rows before every forward pass of the target; may block or raise.
    """

    name = "fake"
    numerics = EXACT
    context_tokens = 65_536
    linear_shapes: frozenset[tuple[int, int]] = frozenset()

    def __init__(self, script: Script, vocab: int, *, wrong_every: int = 5) -> None:
        self.script, self.vocab, self.wrong_every = script, vocab, wrong_every
        self.before_pass: Callable[[int], object] = lambda rows: None
        sums, rows = RecurrentSpec((ArraySpec("sums", (2,), "float32"),)), AttentionSpec(1, DIM, "float32")
        self.spec = StateSpec((sums, rows), (rows,), ArraySpec("hidden", (DIM,), "float32"))

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self.before_pass(tokens.shape[0])
        positions = view.begin(spans)
        sums = view.recur(0, _summed, (_weights(tokens), mx.where(positions > 0, _weights(tokens), 0.0)))
        seen = self._attend(1, tokens, positions, view) * (positions + 1)
        return _hidden(positions, tokens, sums[:, 0], sums[:, 1], mx.zeros_like(seen), seen)

    def passes(self, tokens: mx.array, spans: Sequence[int], view: View) -> Iterator[mx.array]:
        yield self.forward(tokens, spans, view)

    def head(self, hidden: mx.array) -> mx.array:
        return mx.array(np.stack([self._logits(row) for row in np.array(hidden)]))

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        positions = view.begin_draft(spans)
        total, later = hidden[:, SUM] + _weights(tokens), hidden[:, LATER] + _weights(tokens)
        seen = self._attend(2, tokens, positions, view) * mx.maximum(positions, 1)
        return _hidden(positions, tokens, total, later, mx.ones_like(seen), seen)

    def _attend(self, layer: int, tokens: mx.array, positions: mx.array, view: View) -> mx.array:
        """The mean weight [rows] of all tokens so far: keys are of no account, since the queries are zero."""
        keys = mx.stack([tokens, positions, *[mx.zeros_like(tokens)] * (DIM - 2)], axis=-1).astype(mx.float32)[:, None]
        values = mx.broadcast_to(_weights(tokens)[:, None, None], keys.shape)
        return view.attend(layer, mx.zeros_like(keys), keys, values)[:, 0, 0]

    def _logits(self, row: np.ndarray) -> np.ndarray:
        position, token, total = (int(row[i]) for i in (POSITION, TOKEN, SUM))
        expected = row[LATER if row[IS_DRAFT] else SUM]
        assert abs(row[SEEN] - expected) < 0.5, f"at {position} attention sees {row[SEEN]} where {expected} was summed up"
        following = self.script(position + 1, token, total)
        logits = np.zeros(self.vocab, np.float32)
        logits[(following + 1) % self.vocab if row[IS_DRAFT] and position % self.wrong_every == 0 else following] = 50.0
        return logits


def weight(token: int) -> int:
    """What a token adds to the sum that a script sees."""
    return token % 7


def _weights(tokens: mx.array) -> mx.array:
    return (tokens % 7).astype(mx.float32)


def _summed(states: States, inputs: Arrays, spans: Sequence[int]) -> tuple[mx.array, States]:
    parts = split_rows(mx.stack(list(inputs), axis=-1), spans)
    sums = [total + mx.cumsum(rows, axis=0) for (total,), rows in zip(states.each(), parts, strict=True)]
    return joined_rows(sums), States([(rows[-1],) for rows in sums])


def _hidden(*parts: mx.array) -> mx.array:
    known = mx.stack([part.astype(mx.float32) for part in parts], axis=-1)
    return mx.pad(known, [(0, 0), (0, DIM - len(parts))])
