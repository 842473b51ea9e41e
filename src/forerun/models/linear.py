"""Weight matrices, plain or quantised, behind one interface: projections, embeddings, heads, also for many experts at once.

Knows nothing of names or files (see weights.py) nor of a matrix's purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import mlx.core as mx

from forerun.kernels import blocks
from forerun.kernels.linear import linear, linear_of_experts
from forerun.kernels.quantised import PackedMatrix, Scheme, dequantise, product, product_of_experts


class Linear(Protocol):
    """A matrix W [out, in], or one per expert [experts, out, in]."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def arrays(self) -> list[mx.array]:
        """The stored arrays."""

    def __call__(self, x: mx.array) -> mx.array:
        """x @ W.T, [rows, out] for x [rows, in]. Row-invariant under EXACT, quantised or not."""

    def rows(self, ids: mx.array) -> mx.array:
        """W[ids], [rows, in]: an embedding."""

    def reordered(self, order: mx.array) -> Linear:
        """The matrix W[order]: its products have reordered results."""

    def of_experts(self, x: mx.array, experts: mx.array, *, is_sorted: bool) -> mx.array:
        """x[r, j] @ W[experts[r, j]].T, [rows, chosen, out] for x [rows, chosen or 1, in], experts [rows, chosen].

        On a CPU one product per row and expert, so that a row's bits do not depend on the number of rows. is_sorted: `experts` ascends,
        which is faster on a GPU.
        """


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A plain matrix as stored. dtype: of its embedding's rows; the products have that of x."""

    weight: mx.array
    dtype: mx.Dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def arrays(self) -> list[mx.array]:
        return [self.weight]

    def __call__(self, x: mx.array) -> mx.array:
        return linear(x, self.weight)

    def rows(self, ids: mx.array) -> mx.array:
        return self.weight[ids].astype(self.dtype)

    def reordered(self, order: mx.array) -> DenseLinear:
        return self.with_arrays([self.weight[order]])

    def of_experts(self, x: mx.array, experts: mx.array, *, is_sorted: bool) -> mx.array:
        return linear_of_experts(x, self.weight, experts, is_sorted=is_sorted)

    def with_arrays(self, arrays: Sequence[mx.array]) -> DenseLinear:
        """A matrix of this array."""
        return DenseLinear(arrays[0], self.dtype)


# Bits and group sizes of each mode.
SCHEMES = frozenset(
    {Scheme("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)}
    | {Scheme("mxfp4", 4, 32), Scheme("mxfp8", 8, 32), Scheme("nvfp4", 4, 16)}
)


@dataclass(frozen=True, slots=True)
class QuantisedLinear:
    """A packed matrix [..., out, in]. dtype: of the dequantised values."""

    packed: PackedMatrix
    dtype: mx.Dtype

    @property
    def shape(self) -> tuple[int, ...]:
        *outer, words = self.packed.integers.shape
        return (*outer, words * 32 // self.packed.scheme.bits)

    def arrays(self) -> list[mx.array]:
        return [array for array in self.packed[:3] if array is not None]

    def __call__(self, x: mx.array) -> mx.array:
        return product(x, self.packed)

    def rows(self, ids: mx.array) -> mx.array:
        return self.reordered(ids).dense().weight

    def reordered(self, order: mx.array) -> QuantisedLinear:
        return self.with_arrays([array[order] for array in self.arrays()])

    def of_experts(self, x: mx.array, experts: mx.array, *, is_sorted: bool) -> mx.array:
        return product_of_experts(x, self.packed, experts, is_sorted=is_sorted)

    def dense(self) -> DenseLinear:
        """The dequantised matrix."""
        return DenseLinear(dequantise(self.packed, self.dtype), self.dtype)

    def with_arrays(self, arrays: Sequence[mx.array]) -> QuantisedLinear:
        """A matrix of these arrays, packed alike."""
        integers, scales, *biases = arrays
        return QuantisedLinear(PackedMatrix(integers, scales, biases[0] if biases else None, self.packed.scheme), self.dtype)


@dataclass(frozen=True, slots=True)
class BlockLinear:
    """A matrix in GGUF's blocks [out, bytes of a row] uint8, for the CPU kernels. format: its name in `blocks.FORMATS`."""

    weight: mx.array
    format: str

    @property
    def shape(self) -> tuple[int, ...]:
        (out, num_bytes), form = self.weight.shape, blocks.FORMATS[self.format]
        return out, num_bytes // form.num_bytes * form.num_weights

    def arrays(self) -> list[mx.array]:
        return [self.weight]

    def __call__(self, x: mx.array) -> mx.array:
        return blocks.product(x, self.weight, self.format)

    def rows(self, ids: mx.array) -> mx.array:
        return blocks.rows(self.weight, ids, self.format)

    def reordered(self, order: mx.array) -> BlockLinear:
        return self.with_arrays([self.weight[order]])

    def of_experts(self, x: mx.array, experts: mx.array, *, is_sorted: bool) -> mx.array:
        raise NotImplementedError("no family with experts is read from GGUF files")

    def with_arrays(self, arrays: Sequence[mx.array]) -> BlockLinear:
        """A matrix of these blocks in the same format."""
        return BlockLinear(arrays[0], self.format)


@dataclass(frozen=True, slots=True)
class SplitLinear:
    """Stacked matrices that cannot be stored as one: plain and quantised, or in different schemes or formats."""

    parts: tuple[Linear, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        *experts, _, inner = self.parts[0].shape
        return (*experts, sum(p.shape[-2] for p in self.parts), inner)

    def arrays(self) -> list[mx.array]:
        return [a for part in self.parts for a in part.arrays()]

    def __call__(self, x: mx.array) -> mx.array:
        return mx.concatenate([p(x) for p in self.parts], axis=-1)

    def rows(self, ids: mx.array) -> mx.array:
        raise NotImplementedError("an embedding is one matrix")

    def reordered(self, order: mx.array) -> Linear:
        raise NotImplementedError("rows are reordered before matrices are stacked")

    def of_experts(self, x: mx.array, experts: mx.array, *, is_sorted: bool) -> mx.array:
        return mx.concatenate([p.of_experts(x, experts, is_sorted=is_sorted) for p in self.parts], axis=-1)


def stacked(parts: Sequence[Linear]) -> Linear:
    """One matrix for several products of the same input; split the result with `mx.split`. Neighbours that are stored alike are joined."""
    wholes = [_joined(list(alike)) for _, alike in groupby(parts, _storage)]
    return wholes[0] if len(wholes) == 1 else SplitLinear(tuple(wholes))


def _storage(part: Linear) -> object:
    """Equal for matrices that can be stored as one."""
    match part:
        case QuantisedLinear():
            return part.packed.scheme
        case BlockLinear():
            return part.format
    return type(part)


def _joined(parts: Sequence[Linear]) -> Linear:
    """Matrices of one `_storage` as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    assert isinstance(first, DenseLinear | QuantisedLinear | BlockLinear)
    return first.with_arrays([mx.concatenate(list(arrays), axis=-2) for arrays in zip(*(p.arrays() for p in parts), strict=True)])
