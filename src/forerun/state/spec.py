"""The state of a model as its family declares it: shapes and dtypes for every kind of layer.

Holds no arrays; records and caches are built from it, and a header read from disk is checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of fixed shape."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A full-attention layer: keys and values, each [kv_heads, tokens, head_dim]."""

    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A layer with state of fixed size (gated DeltaNet: conv tail and recurrent matrix)."""

    arrays: tuple[ArraySpec, ...]

    @property
    def num_bytes(self) -> int:
        return sum(a.num_bytes for a in self.arrays)


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The state of a sequence: target layers in order, draft (MTP) layers, and the last hidden vector (after the final norm)."""

    layers: tuple[AttentionSpec | RecurrentSpec, ...]
    draft_layers: tuple[AttentionSpec, ...]
    hidden: ArraySpec

    @property
    def attention(self) -> tuple[AttentionSpec, ...]:
        """Attention layers of target and draft, in the order in which a segment stores them."""
        return tuple(s for s in self.layers if isinstance(s, AttentionSpec)) + self.draft_layers

    @property
    def recurrent(self) -> tuple[RecurrentSpec, ...]:
        """Recurrent layers, in the order in which a snapshot stores them."""
        return tuple(s for s in self.layers if isinstance(s, RecurrentSpec))

    @property
    def snapshot_arrays(self) -> tuple[ArraySpec, ...]:
        """Arrays of a snapshot in stored order: every recurrent layer's, then the hidden vector."""
        return (*tuple(a for s in self.recurrent for a in s.arrays), self.hidden)

    @property
    def bytes_per_token(self) -> int:
        return sum(s.bytes_per_token for s in self.attention)

    @property
    def bytes_per_snapshot(self) -> int:
        return sum(a.num_bytes for a in self.snapshot_arrays)

    @property
    def snapshot_tokens(self) -> float:
        """A snapshot's size, in tokens of keys and values."""
        return self.bytes_per_snapshot / self.bytes_per_token
