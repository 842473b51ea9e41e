"""A family whose drafts are as good as a test wants them, whatever its draft head makes of its rows; it records what the trunk says."""

from __future__ import annotations

import random
from collections.abc import Sequence

import mlx.core as mx

from forerun.decode.generate import Generation
from forerun.kernels.numerics import Numerics
from forerun.models.base import Family
from forerun.state.cache import View
from forerun.state.spec import StateSpec


class Guessing:
    """`family`, but a draft is the token of `answer` at its place with probability `right`, else another one.

    Set `generation` before it is iterated. logits: of the trunk, one array [rows, vocab] a round, the first token's before them.
    """

    def __init__(self, family: Family, answer: Sequence[int], right: float, seed: object) -> None:
        self.name, self.linear_shapes, self.context_tokens = family.name, family.linear_shapes, family.context_tokens
        self.spec: StateSpec = family.spec
        self.vocab: int = family.vocab
        self.numerics: Numerics = family.numerics
        self.generation: Generation
        self.logits: list[mx.array] = []
        self._family, self._answer, self._right = family, answer, right
        self._rng = random.Random(str(seed))
        self._drafting, self._drafted = False, 0

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self._drafting, self._drafted = False, 0
        return self._family.forward(tokens, spans, view)

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        self._drafting = True
        return self._family.draft(hidden, tokens, spans, view)

    def head(self, hidden: mx.array) -> mx.array:
        if not self._drafting:
            self.logits.append(self._family.head(hidden))
            return self.logits[-1]
        place = len(self.generation.tokens) + self._drafted
        token = self._answer[place] if place < len(self._answer) else 0
        if self._rng.random() > self._right:
            token = (token + 1) % self.vocab
        self._drafted += 1
        return mx.where(mx.arange(self.vocab) == token, 40.0, 0.0)[None]
