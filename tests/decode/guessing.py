"""Families that record the logits of their target, and one whose drafts are as good as a test wants."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import mlx.core as mx

from forerun.decode.generate import Generation
from forerun.models.base import Family
from forerun.state.cache import View
from forerun.state.spec import StateSpec


class RecordingFamily:
    """`family`, unchanged. Set `generation` before it is iterated; its prompt must have been prefilled by `family` itself.

    logits: of the target, one array [rows, vocab] a round, the first token's before them.
    """

    def __init__(self, family: Family) -> None:
        self.name, self.linear_shapes, self.context_tokens = family.name, family.linear_shapes, family.context_tokens
        self.vocab, self.numerics = family.vocab, family.numerics
        self.spec: StateSpec = family.spec
        self.generation: Generation
        self.logits: list[mx.array] = []
        self._family = family
        self._drafting, self._drafted = False, 0

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self._drafting, self._drafted = False, 0
        return self._family.forward(tokens, spans, view)

    def passes(self, tokens: mx.array, spans: Sequence[int], view: View) -> Iterator[mx.array]:
        yield self.forward(tokens, spans, view)

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self._drafting = True
        return self._family.draft(hidden, tokens, spans, view)

    def head(self, hidden: mx.array) -> mx.array:
        if not self._drafting:
            self.logits.append(self._family.head(hidden))
            return self.logits[-1]
        self._drafted += 1
        return self.guess(hidden, len(self.generation.tokens), self._drafted)

    def guess(self, hidden: mx.array, given: int, depth: int) -> mx.array:
        """Logits [1, vocab] of the draft of this depth (1, 2, ...) after `given` tokens of the answer."""
        return self._family.head(hidden)


class GuessingFamily(RecordingFamily):
    """A draft is the token of `answer` at its position with probability `right`, else another one."""

    def __init__(self, family: Family, answer: Sequence[int], right: float, seed: object) -> None:
        super().__init__(family)
        self._answer, self._right = answer, right
        self._rng = random.Random(str(seed))

    def guess(self, hidden: mx.array, given: int, depth: int) -> mx.array:
        position = given + depth - 1
        token = self._answer[position] if position < len(self._answer) else 0
        if self._rng.random() > self._right:
            token = (token + 1) % self.vocab
        return mx.where(mx.arange(self.vocab) == token, 40.0, 0.0)[None]


class DraftRecorder(RecordingFamily):
    """drafts: their logits, by the number of tokens given before the round, and the draft's depth."""

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.drafts: dict[tuple[int, int], mx.array] = {}

    def guess(self, hidden: mx.array, given: int, depth: int) -> mx.array:
        self.drafts[given, depth] = super().guess(hidden, given, depth)
        return self.drafts[given, depth]
