"""How a live cache is arranged. A layout is a frozen value: restore contract, compile key, log field and test expectation at once.

Knows nothing of arrays, capacities or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Contiguous:
    """Keys and values of a layer in one array [kv_heads, capacity, head_dim]."""

    def __str__(self) -> str:
        return "contiguous"


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values in blocks of `block_tokens` that need not lie side by side."""

    block_tokens: int

    def __str__(self) -> str:
        return f"paged({self.block_tokens})"


Layout = Contiguous | Paged
L = TypeVar("L", Contiguous, Paged)
M = TypeVar("M", Contiguous, Paged)


def layout_for(phase: Phase, context_tokens: int) -> Contiguous:
    """The layout that a cache of `context_tokens` should have in this phase. The one place where a layout is chosen."""
    return Contiguous()
