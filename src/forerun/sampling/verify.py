"""Which drafts are accepted, and the token after them, so that emitted tokens follow the target's distribution whatever was drafted.

Pure and lazy: one round of b sequences with k drafts each, verified on the device. One-hot distributions (temperature 0) and k = 0 (plain
decoding) use the same arithmetic. Ratio acceptance: Leviathan et al. 2023, Chen et al. 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from forerun.sampling.draw import draw, draw_coupled


class Verdict(NamedTuple):
    """For each sequence [b]: the number `accepted` int32 of leading drafts that are accepted, and the next token `token` int32."""

    accepted: mx.array
    token: mx.array


def verify(target: mx.array, draft: mx.array, drafts: mx.array, u_accept: mx.array, u_next: mx.array) -> Verdict:
    """Accept draft i with probability min(1, p / q); draw the token after the accepted ones from the residual of the target.

    target [b, k+1, vocab]: the distributions after 0..k drafts; draft [b, k, vocab]: those that drafts [b, k] were drawn from; u_accept
    [b, k], u_next [b]: independent uniforms in (0, 1). Every draft must be verified: dropping one unverified biases the distribution.
    """
    depth = drafts.shape[1]
    if depth == 0:
        return Verdict(mx.zeros((drafts.shape[0],), dtype=mx.int32), draw(target[:, 0], u_next))
    p = mx.take_along_axis(target[:, :depth], drafts[..., None], axis=-1)[..., 0]
    q = mx.take_along_axis(draft, drafts[..., None], axis=-1)[..., 0]
    accepted = _leading(u_accept * q < p)
    # Nothing was drafted for the last row: its residual is its whole distribution.
    nothing = mx.zeros_like(target[:, :1])
    residual = _residual(_row(target, accepted), _row(mx.concatenate([draft, nothing], axis=1), accepted))
    return Verdict(accepted, draw(residual, u_next))


def verify_coupled(target: mx.array, drafts: mx.array, g: mx.array) -> Verdict:
    """Draw every row's token with its own noise; accept drafts while they agree. Tokens are those of plain decoding with this noise.

    target [b, k+1, vocab], drafts [b, k], g [b, k+1, vocab].
    """
    return verify_chosen(draw_coupled(target, g), drafts)


def verify_chosen(tokens: mx.array, drafts: mx.array) -> Verdict:
    """Accept drafts [b, k] while they agree with the target's own `tokens` [b, k+1], each chosen as plain decoding would."""
    accepted = _leading(tokens[:, :-1] == drafts)
    return Verdict(accepted, mx.take_along_axis(tokens, accepted[:, None], axis=1)[:, 0])


def _leading(agrees: mx.array) -> mx.array:
    """How many of `agrees` [b, k] bool come before the first False: [b] int32."""
    return mx.sum(mx.cumprod(agrees.astype(mx.int32), axis=1), axis=1)


def _row(distributions: mx.array, index: mx.array) -> mx.array:
    """distributions [b, rows, vocab] at row index [b]: [b, vocab]."""
    return distributions[mx.arange(distributions.shape[0]), index]


def _residual(p: mx.array, q: mx.array) -> mx.array:
    """The residual (p - q)+ of the target after a rejected draft, not normalised."""
    residual = mx.maximum(p - q, 0.0)
    # A rejection means q > p somewhere, so p > q elsewhere; if only rounding rejected, p equals q and the residual is p itself.
    return mx.where(mx.any(residual > 0, axis=-1, keepdims=True), residual, p)
