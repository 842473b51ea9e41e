"""From a distribution and noise to a token: inverse CDF with a uniform, or coupled with Gumbel noise.

Pure and lazy. Knows nothing of the origin of distribution and noise.
"""

from __future__ import annotations

import mlx.core as mx


def draw(probs: mx.array, u: mx.array) -> mx.array:
    """The token [rows] int32 at which the running sum of `probs` [rows, vocab], in token order, passes `u` [rows] in (0, 1) of the total.

    `probs` need not sum to 1. A token of probability zero is never drawn, however the running sum is rounded.
    """
    sums = mx.where(probs > 0, mx.cumsum(probs, axis=-1), 0.0)
    passed = sums > u[:, None] * mx.max(sums, axis=-1, keepdims=True)
    return mx.argmax(passed, axis=-1).astype(mx.int32)


def draw_coupled(probs: mx.array, g: mx.array) -> mx.array:
    """The token [...] int32 with the largest log `probs` + `g`, both [..., vocab]; of equals the lowest. Exact if `g` is Gumbel noise.

    Two similar distributions that share `g` mostly agree. A token of probability zero is never drawn.
    """
    return mx.argmax(mx.log(probs) + g, axis=-1).astype(mx.int32)
