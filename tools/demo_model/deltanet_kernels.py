"""The two Triton kernels of the chunked gated delta rule; deltanet.py defines what they compute, in plain PyTorch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 32


def inverse_of_one_plus(a: Tensor) -> Tensor:
    """(I + a)^-1 for strictly lower triangular, contiguous a [..., n, n] in float32."""
    size, inverse = a.shape[-1], torch.empty_like(a)
    _inverse[(a.numel() // size**2,)](a, inverse, size, num_warps=4)
    return inverse


def chunk_scan(c: Tensor, m: Tensor, b: Tensor, is_reverse: bool) -> Tensor:
    """States before each chunk, for contiguous c [sequences, chunks] and m, b [sequences, chunks, dim, dim]."""
    sequences, chunks, dim, _ = m.shape
    states = torch.empty_like(b)
    _scan[(sequences, dim // COLUMNS)](c, m, b, states, chunks, dim, COLUMNS, is_reverse, num_warps=4, num_stages=2)
    return states


@triton.jit
def _inverse(a: tl.tensor, inverse: tl.tensor, size: tl.constexpr) -> None:
    """One matrix a program, by forward substitution: row i of the inverse is minus row i of a times the rows before it."""
    base = tl.program_id(0).to(tl.int64) * size * size
    at = tl.arange(0, size)
    rows = tl.where(at[:, None] == at[None, :], 1.0, 0.0)
    for i in range(1, size):
        row = tl.where(at < i, tl.load(a + base + i * size + at), 0.0)
        solved = tl.where(at == i, 1.0, -tl.sum(row[:, None] * rows, 0))
        rows = tl.where((at == i)[:, None], solved[None, :], rows)
    tl.store(inverse + base + at[:, None] * size + at[None, :], rows)


@triton.jit
def _scan(
    c: tl.tensor,
    m: tl.tensor,
    b: tl.tensor,
    states: tl.tensor,
    chunks: tl.tensor,
    dim: tl.constexpr,
    columns: tl.constexpr,
    is_reverse: tl.constexpr,
) -> None:
    """Some columns of one sequence's state a program."""
    sequence = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, dim), tl.program_id(1) * columns + tl.arange(0, columns)
    square = row[None, :] * dim + row[:, None] if is_reverse else row[:, None] * dim + row[None, :]
    state = tl.zeros((dim, columns), tl.float32)
    for i in range(chunks):
        chunk = (chunks - 1 - i) if is_reverse else i
        at = (sequence * chunks + chunk) * dim * dim
        here = at + row[:, None] * dim + column[None, :]
        tl.store(states + here, state.to(states.dtype.element_ty))
        step = tl.load(m + at + square)
        moved = tl.dot(step, state.to(step.dtype))
        state = tl.load(c + sequence * chunks + chunk) * state - moved + tl.load(b + here).to(tl.float32)
