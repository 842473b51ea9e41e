"""The tokens that grammars allow in the rows of a round. They are found on the host while the device computes the logits."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from forerun.grammar.matcher import Matcher

Row = NDArray[np.bool_] | None  # [vocab]; None: all tokens are allowed


class GrammarMask:
    """The masks of one round of b sequences, which takes their matchers through its drafts and back again.

    A row behind a draft that is not allowed, or of a sequence whose matcher raised, allows all: its draft is impossible in the row before.
    errors: what a matcher raised, by sequence.
    """

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self._matchers = matchers
        self._num_accepted = [0] * len(matchers)
        self._is_over = [False] * len(matchers)
        self.errors: dict[int, Exception] = {}
        self._rows: list[list[Row]] = []

    def next_row(self, logits: mx.array, drafts: mx.array) -> mx.array | None:
        """Of the token after the drafts [b, drafted] int32 so far, whose logits are [b, vocab]: [b, vocab] bool, None if all are allowed.

        A sequence whose first row has no mask gets none here, whatever others have: its drafts do not depend on them. If none has, the
        drafts are not looked at, which would wait for each.
        """
        if not self._rows:
            self._begin(logits)
        if all(row is None for row in self._rows[0]):
            return None
        self._follow(logits, drafts)
        return _stacked([[row if first is not None else None] for first, row in zip(self._rows[0], self._rows[-1], strict=True)], logits)

    def rows(self, logits: mx.array, drafts: mx.array) -> mx.array | None:
        """Of all rows, as `verify` has them: [b * (drafted + 1), vocab] bool, None if all are allowed. The matchers are as at the start."""
        if not self._rows:
            self._begin(logits)
        self._follow(logits, drafts)
        for matcher, num in zip(self._matchers, self._num_accepted, strict=True):
            matcher.rollback(num)
        return _stacked([list(rows) for rows in zip(*self._rows, strict=True)], logits)

    def _begin(self, logits: mx.array) -> None:
        """The first row, while the device computes the logits."""
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        self._rows.append(self._allowed())

    def _follow(self, logits: mx.array, drafts: mx.array) -> None:
        """Take the matchers through the drafts that are new, while the device computes the logits after them."""
        new = drafts[:, len(self._rows) - 1 :]
        if not new.size:
            return
        for arrays in (new, logits):  # two calls, so that the drafts can be had before the logits
            mx.async_eval(arrays)  # type: ignore[no-untyped-call]
        for tokens in np.array(new).T.tolist():
            for i, token in enumerate(tokens):
                self._accept(i, token)
            self._rows.append(self._allowed())

    def _accept(self, i: int, token: int) -> None:
        if self._is_over[i]:
            return
        try:
            self._matchers[i].accept(token)
            self._num_accepted[i] += 1
        except ValueError:
            self._is_over[i] = True

    def _allowed(self) -> list[Row]:
        return [None if self._is_over[i] else self._allowed_by(i) for i in range(len(self._matchers))]

    def _allowed_by(self, i: int) -> Row:
        try:
            return self._matchers[i].allowed()
        except Exception as error:  # noqa: BLE001 - ends this sequence alone
            self.errors[i], self._is_over[i] = error, True
            return None


def _stacked(rows: Sequence[Sequence[Row]], logits: mx.array) -> mx.array | None:
    """rows: of each sequence. [sequences * rows, vocab] bool, vocab as in logits [..., vocab]; None if all tokens are allowed."""
    flat, vocab = [row for own in rows for row in own], logits.shape[-1]
    if all(row is None for row in flat):
        return None
    return mx.array(np.stack([np.ones(vocab, dtype=np.bool_) if row is None else row for row in flat]))
