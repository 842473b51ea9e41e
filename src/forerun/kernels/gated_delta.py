"""The gated delta rule (Yang et al., arXiv 2412.06464): a matrix state that decays, is corrected towards each value and read by each query.

For each head and row, with S [value_dim, key_dim]: S <- g S; S <- S + beta (v - S k) k^T; y = S q.
"""

from __future__ import annotations

import mlx.core as mx

CHUNK_ROWS = 64
_STEPS_UP_TO_ROWS = 16
_SERIES_ROWS = 8


def steps(q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    """The reference: the rule row after row; on a CPU the same bits under any split of the rows.

    q, k [rows, key_heads, key_dim]; v [rows, value_heads, value_dim]; g, beta [rows, value_heads], g in (0, 1];
    state [value_heads, value_dim, key_dim] float32. Value head j reads key head j // (value_heads / key_heads).
    Returns y [rows, value_heads, value_dim] and the state after the last row.
    """
    y, new = mx.fast.gated_delta_update(q[None], k[None], v[None], g[None], beta[None], state[None])
    return y[0], new[0]


def chunks(q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    """The same rule by chunks of CHUNK_ROWS rows with matrix products (WY form, section 3 of the paper): faster, rounded differently.

    Arguments and results as in `steps`; g may be so small that it is rounded to 0. Few rows use `steps`.
    """
    rows, value_heads, _ = v.shape
    if rows <= _STEPS_UP_TO_ROWS:
        return steps(q, k, v, g, beta, state)
    repeats = value_heads // q.shape[1]
    q, k, v, beta = (_by_chunk(x, 0.0) for x in (mx.repeat(q, repeats, axis=1), mx.repeat(k, repeats, axis=1), v, beta[..., None]))
    g = _by_chunk(g[..., None], 1.0)
    decay, between = mx.cumprod(g, axis=-2), _between(g)
    update = _inverse_of_unit_lower(mx.tril((k * beta) @ k.swapaxes(-1, -2) * between, -1))
    values, keys = update @ (v * beta), update @ (k * beta * decay)
    scores = mx.tril(q @ k.swapaxes(-1, -2) * between)
    q, k = q * decay, (k * between[..., -1, :, None]).swapaxes(-1, -2)
    s, outputs = state.swapaxes(-1, -2), []
    for c in range(q.shape[0]):
        delta = values[c] - keys[c] @ s
        outputs.append(q[c] @ s + scores[c] @ delta)
        s = s * decay[c, :, -1:] + k[c] @ delta
    y = mx.stack(outputs).swapaxes(1, 2).reshape(-1, value_heads, v.shape[-1])
    return y[:rows], s.swapaxes(-1, -2)


def _between(g: mx.array) -> mx.array:
    """The decay from row j to row i, g[j + 1] * ... * g[i] for g [..., CHUNK_ROWS, 1]: [..., i, j], valid where j <= i.

    Each is a separate product: a quotient of running products loses all digits after a strong decay, and is 0 / 0 once one rounds to 0.
    """
    after = mx.tri(CHUNK_ROWS, k=-1) > 0
    return mx.cumprod(mx.where(after, g, 1.0), axis=-2)


def _by_chunk(x: mx.array, missing: float) -> mx.array:
    """[rows, heads, dim] -> [chunks, heads, CHUNK_ROWS, dim]. Padding rows change nothing: no decay (g 1), no update (beta 0)."""
    rows, heads, dim = x.shape
    x = mx.pad(x, [(0, -rows % CHUNK_ROWS), (0, 0), (0, 0)], constant_values=missing)
    return x.reshape(-1, CHUNK_ROWS, heads, dim).swapaxes(1, 2)


def _inverse_of_unit_lower(strict: mx.array) -> mx.array:
    """(I + strict)^-1 for a strictly lower triangular [..., CHUNK_ROWS, CHUNK_ROWS].

    The diagonal blocks by the finite series; then pairs of blocks are joined. The series over the whole matrix would be less code, but
    lose all digits where keys repeat: its terms grow like binomials.
    """
    size = _SERIES_ROWS
    block = _blocks(strict, size, 0)
    power, inverse = block @ block, mx.eye(size) - block
    for _ in range(size.bit_length() - 2):
        inverse, power = inverse + inverse @ power, power @ power
    while size < CHUNK_ROWS:
        upper, lower = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = -(lower @ _blocks(strict, size, size)[..., 0::2, :, :] @ upper)
        top = mx.concatenate([upper, mx.zeros_like(upper)], axis=-1)
        inverse = mx.concatenate([top, mx.concatenate([corner, lower], axis=-1)], axis=-2)
        size *= 2
    return inverse[..., 0, :, :]


def _blocks(matrix: mx.array, size: int, below: int) -> mx.array:
    """The blocks of `size` rows whose diagonal runs `below` the matrix's: [..., blocks, size, size]."""
    starts = range(0, CHUNK_ROWS - below, size)
    return mx.stack([matrix[..., s + below : s + below + size, s : s + size] for s in starts], axis=-3)
