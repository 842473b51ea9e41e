"""Compares two answers under teacher forcing, in this process, on the bundled model. The only part of the demo that loads MLX.

Under `fast` numerics a restored conversation may round differently from one computed again, so two greedy answers may diverge where two
logits are nearly equal. The bound on their gap is measured on the probes of reference.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from forerun.config import Config, prepare
from forerun.demo.compare import NearTies

if TYPE_CHECKING:
    import mlx.core as mx

    from forerun.kernels.arithmetic import Arithmetic

BOUND_FACTOR = 4.0


def near_ties(prompt: Sequence[int], answer_a: Sequence[int], answer_b: Sequence[int]) -> NearTies:
    """The deviations of two answers (token ids) after `prompt` from the model's greedy choice; gaps in logits."""
    model = _model()
    gaps = [gap for answer in (answer_a, answer_b) for gap in model.gaps(prompt, answer)]
    return NearTies(len(gaps), max(gaps, default=0.0), BOUND_FACTOR * model.largest_difference)


@cache
def _model() -> TeacherForcing:
    # As a server process does, before MLX is imported.
    prepare(Config.model_validate({}))
    from forerun.kernels import arithmetic

    return TeacherForcing(arithmetic.here())


class TeacherForcing:
    """The bundled model under teacher forcing."""

    def __init__(self, chosen: Arithmetic) -> None:
        from forerun.models.load import DEMO_MODEL, load

        self._family = load(DEMO_MODEL, chosen.numerics, chosen.dtype, lambda doing, done_frac: None).family
        self._probes = json.loads((DEMO_MODEL / "reference.json").read_text())["prompts"]

    def gaps(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """For each answer token that is not the model's first choice: the first choice's logit minus its own."""
        import mlx.core as mx

        logits = self._logits([*prompt, *answer])[len(prompt) - 1 : -1]
        own = mx.take_along_axis(logits, mx.array(list(answer))[:, None], axis=-1)[:, 0]
        return [float(gap) for gap in np.array(logits.max(axis=-1) - own) if gap > 0]

    @cached_property
    def largest_difference(self) -> float:
        """Between the probes' logits computed in one pass, and with the answer computed token by token."""
        import mlx.core as mx

        largest = 0.0
        for probe in self._probes:
            tokens, start = [*probe["token_ids"], *probe["greedy_32"]], len(probe["token_ids"])
            difference = mx.abs(self._logits(tokens)[start:] - self._logits(tokens, steps_from=start)[start:]).max()
            largest = max(largest, float(np.array(difference)))
        return largest

    def _logits(self, tokens: Sequence[int], steps_from: int | None = None) -> mx.array:
        """Logits [tokens, vocab] after each token; from `steps_from` on, one token per pass."""
        import mlx.core as mx

        from forerun.decode.prefill import grid
        from forerun.state.cache import lend
        from forerun.state.conversion import materialise
        from forerun.state.layout import Contiguous
        from forerun.state.store import Arena

        state, logits = materialise(Arena(self._family.spec), [], None, Contiguous(), len(tokens)), []
        while (start := state.length) < len(tokens):
            stop = start + 1 if steps_from is not None and start >= steps_from else min(grid(start), steps_from or len(tokens), len(tokens))
            with lend([state], self._family.numerics) as view:
                hidden = self._family.forward(mx.array(list(tokens[start:stop]), dtype=mx.int32), [stop - start], view)
                view.keep([stop - start], hidden)
            logits.append(self._family.head(hidden))
            mx.eval(logits[-1], state.arrays())
        return mx.concatenate(logits)
