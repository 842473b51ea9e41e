"""Weight matrices, plain or quantised, behind one interface: projections, embeddings, heads, also for many experts at once.

Knows nothing of names or files (see weights.py) nor of a matrix's purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

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

    def reordered(self, order: mx.array) -> Linear:
        return DenseLinear(self.weight[order], self.dtype)

    def of_experts(self, x: mx.array, experts: mx.array, *, is_sorted: bool) -> mx.array:
        return linear_of_experts(x, self.weight, experts, is_sorted=is_sorted)


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
class SplitLinear:
    """Stacked matrices that cannot be stored as one: plain and quantised, or quantised by different schemes."""

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
    """One matrix for several products of the same input; split the result with `mx.split`."""
    if len(parts) == 1:
        return parts[0]
    dense = [p for p in parts if isinstance(p, DenseLinear)]
    if len(dense) == len(parts):
        return DenseLinear(mx.concatenate([p.weight for p in dense], axis=-2), dense[0].dtype)
    packed = [p for p in parts if isinstance(p, QuantisedLinear)]
    if len(packed) < len(parts) or len({p.packed.scheme for p in packed}) > 1:
        return SplitLinear(tuple(parts))
    return packed[0].with_arrays([mx.concatenate(list(arrays), axis=-2) for arrays in zip(*(p.arrays() for p in packed), strict=True)])
