"""Log-probabilities of tokens: the log-softmax of the logits, before penalties, bias, temperature, top-k, top-p and min-p.

Pure and lazy. Knows nothing of what was drawn, or from which distribution.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from forerun.kernels.largest import largest_ids
from forerun.kernels.log_softmax import log_softmax

MIN_LOGPROB = -9999.0  # as OpenAI reports an impossible token; JSON has no infinity


class Logprobs(NamedTuple):
    """`chosen` [rows] float32: of one token per row; `top` [rows, num] float32: of the likeliest tokens `ids` [rows, num] uint32,
    descending, of equals the lower id first.
    """

    chosen: mx.array
    ids: mx.array
    top: mx.array


def logprobs(logits: mx.array, tokens: mx.array, num: int) -> Logprobs:
    """Natural logarithms of the probabilities of `tokens` [rows] int32 and of the `num` likeliest under `logits` [rows, vocab] float32.

    NaN where a row has no distribution (`is_finite`); never below MIN_LOGPROB.
    """
    values = log_softmax(logits)
    ids = largest_ids(logits, min(num, logits.shape[-1])) if num else mx.zeros((logits.shape[0], 0), dtype=mx.uint32)

    def of(chosen: mx.array) -> mx.array:
        return mx.maximum(mx.take_along_axis(values, chosen, axis=-1), MIN_LOGPROB)

    return Logprobs(of(tokens[:, None])[:, 0], ids, of(ids))
