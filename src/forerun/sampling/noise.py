"""Counter-based noise: a pure function of (seed, position, purpose), independent of any other computation.

Position is that of the token to be drawn, counted from the start of the conversation. Never uses MLX's global random state.
Only `fresh_seed` is impure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import mlx.core as mx

Purpose = Literal["draft", "accept", "next", "couple"]

_SMALLEST = 2.0**-33  # below the smallest non-zero value of mx.random.uniform, whose largest is 1 - 2**-24: keeps the interval open


def fresh_seed() -> int:
    """A seed for a request without one: 64 random bits from the operating system."""
    return int.from_bytes(os.urandom(8), "little")


def uniforms(seeds: Sequence[int], positions: mx.array, purpose: Purpose) -> mx.array:
    """One uniform number in the open interval (0, 1) for each of `positions` [b, n] integer, row j under seeds[j]: [b, n] float32.

    Any int is a seed.
    """
    return _uniforms(seeds, positions, purpose, ())


def gumbel(seeds: Sequence[int], positions: mx.array, vocab: int) -> mx.array:
    """Standard Gumbel noise [b, n, vocab] float32, all finite, for each of `positions` [b, n] integer, row j under seeds[j]: what a coupled
    draw adds to log p.
    """
    # log1p(-u), not log(u): large values, which decide the draw, come from small u, where float32 is finest.
    return -mx.log(-mx.log1p(-_uniforms(seeds, positions, "couple", (vocab,))))


def _uniforms(seeds: Sequence[int], positions: mx.array, purpose: Purpose, shape: tuple[int, ...]) -> mx.array:
    def one(key: mx.array) -> mx.array:
        return mx.random.uniform(shape=shape, key=key)

    if positions.size == 0:  # MLX divides by zero for zero numbers
        return mx.zeros((*positions.shape, *shape))
    keys = _keys(seeds, positions, purpose).reshape(-1, 2)
    return mx.maximum(mx.vmap(one)(keys), _SMALLEST).reshape(*positions.shape, *shape)


def _keys(seeds: Sequence[int], positions: mx.array, purpose: Purpose) -> mx.array:
    """Threefry keys [b, n, 2] uint32: 64 bits of seed and purpose, the position folded in."""
    high, low = (mx.array(half, dtype=mx.uint32)[:, None] for half in zip(*(_digest(seed, purpose) for seed in seeds), strict=True))
    lows = positions.astype(mx.uint32) ^ low
    return mx.stack([mx.broadcast_to(high, lows.shape), lows], axis=-1)


@lru_cache(maxsize=64)
def _digest(seed: int, purpose: Purpose) -> tuple[int, int]:
    raw = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
    digest = blake2b(raw, digest_size=8, person=purpose.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
