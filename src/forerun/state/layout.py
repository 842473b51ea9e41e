"""The layout of a live cache. A layout is a frozen value: restore contract, compile key, log field and test expectation at once.

Knows nothing of arrays, capacities or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar, overload

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Contiguous:
    """Keys and values of a layer in one array [kv_heads, capacity, head_dim]."""

    def __str__(self) -> str:
        return "contiguous"


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values in blocks of `block_tokens` that need not be adjacent."""

    block_tokens: int

    def __str__(self) -> str:
        return f"paged({self.block_tokens})"


Layout = Contiguous | Paged
L = TypeVar("L", Contiguous, Paged)
M = TypeVar("M", Contiguous, Paged)


DENSE_TOKENS = 131_072
PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """A decoding cache is contiguous up to dense_tokens of context, beyond that paged with page_tokens per page."""

    dense_tokens: int
    page_tokens: int


def limits_of(bytes_per_token: int, memory_bytes: int) -> Limits:
    """The limits of a model on a machine. A fifth of the memory stays free for the growth of a contiguous cache by an eighth; dense_tokens
    is at most DENSE_TOKENS.
    """
    return Limits(min(DENSE_TOKENS, memory_bytes * 4 // 5 // bytes_per_token), PAGE_TOKENS)


@overload
def layout_for(phase: Literal["prefill"], context_tokens: int, limits: Limits) -> Contiguous: ...
@overload
def layout_for(phase: Literal["decode"], context_tokens: int, limits: Limits) -> Layout: ...
def layout_for(phase: Phase, context_tokens: int, limits: Limits) -> Layout:
    """The layout of a cache of `context_tokens` in this phase. Layouts are chosen nowhere else."""
    if phase == "prefill" or context_tokens <= limits.dense_tokens:
        return Contiguous()
    return Paged(limits.page_tokens)
