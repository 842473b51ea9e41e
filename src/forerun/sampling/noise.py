"""Counter-based noise: a pure function of (seed, position, purpose), independent of any other computation.

Position is that of the token to be drawn, counted from the start of the conversation. Never uses MLX's global random state.
Only `fresh_seed` is impure.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Literal

import mlx.core as mx

Purpose = Literal["draft", "accept", "next", "couple"]

_SMALLEST = 2.0**-33  # below the smallest non-zero value of mx.random.uniform, whose largest is 1 - 2**-24: keeps the interval open


def fresh_seed() -> int:
    """A seed for a request without one: 64 random bits from the operating system."""
    return int.from_bytes(os.urandom(8), "little")


def uniforms(seed: int, positions: mx.array, purpose: Purpose) -> mx.array:
    """One uniform number in the open interval (0, 1) for each of `positions` [n] integer: [n] float32. Any int is a seed."""
    return _uniforms(seed, positions, purpose, ())


def gumbel(seed: int, positions: mx.array, vocab: int) -> mx.array:
    """Standard Gumbel noise [n, vocab] float32, all finite, for each of `positions` [n] integer: what a coupled draw adds to log p."""
    # log1p(-u), not log(u): large values, which decide the draw, come from small u, where float32 is finest.
    return -mx.log(-mx.log1p(-_uniforms(seed, positions, "couple", (vocab,))))


def _uniforms(seed: int, positions: mx.array, purpose: Purpose, shape: tuple[int, ...]) -> mx.array:
    def one(key: mx.array) -> mx.array:
        return mx.random.uniform(shape=shape, key=key)

    if positions.size == 0:  # MLX divides by zero for zero numbers
        return mx.zeros((0, *shape))
    return mx.maximum(mx.vmap(one)(_keys(seed, positions, purpose)), _SMALLEST)


def _keys(seed: int, positions: mx.array, purpose: Purpose) -> mx.array:
    """Threefry keys [n, 2] uint32: 64 bits of seed and purpose, the position folded in."""
    raw = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
    digest = blake2b(raw, digest_size=8, person=purpose.encode()).digest()
    high, low = (int.from_bytes(half, "little") for half in (digest[:4], digest[4:]))
    lows = positions.astype(mx.uint32) ^ mx.array(low, dtype=mx.uint32)
    return mx.stack([mx.full(lows.shape, high, dtype=mx.uint32), lows], axis=-1)
