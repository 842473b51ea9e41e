"""Log-probabilities of prompt or answer tokens on the host: only requested values leave the device.

Knows one sequence's rows; nothing of text, stops or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from forerun.errors import NumericsError
from forerun.models.base import Family
from forerun.sampling.logprobs import Logprobs, logprobs

BLOCK_ROWS = 32  # of logits at once: 32 MB with a vocabulary of 250,000


class Score(NamedTuple):
    """A token's log-probability, and (id, log-probability) of the likeliest tokens at its position, descending."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def scores(requested: Logprobs) -> list[Score]:
    """One score per row. Raises NumericsError if one is not finite."""
    chosen, ids, top = (np.array(each) for each in requested)
    if not np.isfinite(chosen).all():
        raise NumericsError("the model produced logits that are not numbers", hint="the weights may be damaged")
    rows = zip(chosen.tolist(), ids.tolist(), top.tolist(), strict=True)
    return [Score(logprob, tuple(zip(row, values, strict=True))) for logprob, row, values in rows]


def prompt_scores(family: Family, hidden: mx.array, following: Sequence[int], num_top: int) -> list[Score]:
    """Scores of the tokens `following` after the first rows of `hidden` [rows, dim], BLOCK_ROWS rows at a time."""
    result = list[Score]()
    for start in range(0, len(following), BLOCK_ROWS):
        tokens = mx.array(list(following[start : start + BLOCK_ROWS]), dtype=mx.int32)
        logits = family.head(hidden[start : start + tokens.shape[0]])
        result += scores(logprobs(logits, tokens, num_top))
    return result
