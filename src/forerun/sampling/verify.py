"""Which drafted tokens stand, and the token that follows them, so that what is emitted has the target's law whatever was drafted.

Pure and lazy: one round of b sequences with k drafts each, decided on the device. One-hot laws (temperature 0) and k = 0 (plain decoding)
are the same arithmetic. Ratio acceptance: Leviathan et al. 2023, Chen et al. 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from forerun.sampling.draw import draw, draw_coupled


class Verdict(NamedTuple):
    """Of each sequence [b]: the first `accepted` int32 drafts stand and `token` int32 follows them."""

    accepted: mx.array
    token: mx.array


def verify(target: mx.array, draft: mx.array, drafts: mx.array, u_accept: mx.array, u_next: mx.array) -> Verdict:
    """Accept draft i with probability min(1, p / q); draw the token after the accepted ones from the rest of the target's law.

    target [b, k+1, vocab]: the laws after 0..k drafts; draft [b, k, vocab]: the laws that drafts [b, k] were drawn from; u_accept [b, k],
    u_next [b]: independent uniforms in (0, 1). Every drawn draft must be verified: one that is thrown away unseen biases the law.
    """
    depth = drafts.shape[1]
    if depth == 0:
        return Verdict(mx.zeros((drafts.shape[0],), dtype=mx.int32), draw(target[:, 0], u_next))
    p = mx.take_along_axis(target[:, :depth], drafts[..., None], axis=-1)[..., 0]
    q = mx.take_along_axis(draft, drafts[..., None], axis=-1)[..., 0]
    accepted = _leading(u_accept * q < p)
    # Nothing was drafted in the last row: the rest of its law is the whole of it.
    nothing = mx.zeros_like(target[:, :1])
    rest = _rest(_row(target, accepted), _row(mx.concatenate([draft, nothing], axis=1), accepted))
    return Verdict(accepted, draw(rest, u_next))


def verify_coupled(target: mx.array, drafts: mx.array, g: mx.array) -> Verdict:
    """Draw every row's token with its own noise; drafts stand while they agree. The tokens are those of plain decoding with this noise.

    target [b, k+1, vocab], drafts [b, k], g [b, k+1, vocab].
    """
    tokens = draw_coupled(target, g)
    accepted = _leading(tokens[:, :-1] == drafts)
    return Verdict(accepted, mx.take_along_axis(tokens, accepted[:, None], axis=1)[:, 0])


def _leading(stands: mx.array) -> mx.array:
    """How many of `stands` [b, k] bool come before the first False: [b] int32."""
    return mx.sum(mx.cumprod(stands.astype(mx.int32), axis=1), axis=1)


def _row(distributions: mx.array, index: mx.array) -> mx.array:
    """laws [b, rows, vocab] at row index [b]: [b, vocab]."""
    return distributions[mx.arange(distributions.shape[0]), index]


def _rest(p: mx.array, q: mx.array) -> mx.array:
    """(p - q)+, what a rejected draft leaves of the target's law, not normalised."""
    rest = mx.maximum(p - q, 0.0)
    # A rejection means q > p somewhere, so p > q elsewhere; where only rounding rejected, the laws are equal and p itself is the rest.
    return mx.where(mx.any(rest > 0, axis=-1, keepdims=True), rest, p)
