"""The numerics: what a state's bits depend on besides the model. Fixed for a process; every response names it (docs/exactness.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from forerun.kernels import attention, gated_delta
from forerun.kernels.delta_rule import delta_rule

GatedDelta = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array], tuple[mx.array, mx.array]]


# Part of every state's identity: raise it with every change that changes a bit of any family's results.
VERSION = 5


@dataclass(frozen=True, slots=True)
class Numerics:
    """`attention` and `gated_delta` serve where no kernel of ours does; `attention` reads keys in multiples of `key_block`."""

    name: str
    attention: attention.Attend
    key_block: int
    gated_delta: GatedDelta


# On a CPU: the extension, whose bits are those of every machine; and array operations where it is missing, exact on one machine.
EXACT = Numerics("exact", attention.blocked, attention.BLOCK_KEYS, gated_delta.steps)
ARRAYS = Numerics("exact-arrays", attention.blocked, attention.BLOCK_KEYS, gated_delta.steps)
FAST = Numerics("fast", attention.fused, 1, delta_rule)
