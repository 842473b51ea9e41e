"""How likely the model held each token: the log-softmax of its logits, before penalties, bias, temperature and all that cuts the law.

Pure and lazy. Knows nothing of what was drawn, or by which law.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from forerun.sampling.distribution import largest_ids

LEAST = -9999.0  # as OpenAI tells a token that cannot be; JSON has no infinity


class Logprobs(NamedTuple):
    """Of rows: `chosen` [rows] float32 of one token each; `top` [rows, num] float32 of the likeliest tokens `ids` [rows, num] uint32,
    descending, of equals the lower id first.
    """

    chosen: mx.array
    ids: mx.array
    top: mx.array


def logprobs(logits: mx.array, tokens: mx.array, num: int) -> Logprobs:
    """Natural logarithms of the probabilities of `tokens` [rows] int32 and of the `num` likeliest under `logits` [rows, vocab] float32.

    NaN where a row has no law (`is_finite`); never below LEAST.
    """
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    ids = largest_ids(logits, min(num, logits.shape[-1])) if num else mx.zeros((logits.shape[0], 0), dtype=mx.uint32)

    def of(chosen: mx.array) -> mx.array:
        return mx.maximum(mx.take_along_axis(logits, chosen, axis=-1) - total, LEAST)

    return Logprobs(of(tokens[:, None])[:, 0], ids, of(ids))
