"""A pass over pages takes one size of page."""

from __future__ import annotations

import mlx.core as mx
import pytest

from forerun.kernels.cached_attention import StoredRows, attention
from forerun.kernels.numerics import EXACT
from forerun.kernels.row_span import RowSpan

pytest.importorskip("forerun._cpu")


def in_pages(block_tokens: int) -> StoredRows:
    return StoredRows(mx.zeros((1, 64, 16)), mx.zeros((1, 64, 16)), mx.arange(64 // block_tokens, dtype=mx.int32), block_tokens)


@pytest.mark.parametrize("sizes", [(32, 16), (16, 32)])
def test_pages_of_two_sizes_in_one_pass_are_refused(sizes: tuple[int, int]) -> None:
    """The kernel would read the rows of one of them from the wrong places."""
    spans = [RowSpan(0, mx.array([0], dtype=mx.int32)) for _ in sizes]
    with pytest.raises(ValueError, match="pages of 16 and 32 tokens in one pass"):
        attention(mx.zeros((2, 1, 16)), [in_pages(size) for size in sizes], spans, 0, EXACT)


def test_pages_of_one_size_and_contiguous_rows_share_a_pass() -> None:
    stored = [in_pages(16), StoredRows(mx.zeros((1, 64, 16)), mx.zeros((1, 64, 16)))]
    spans = [RowSpan(0, mx.array([0], dtype=mx.int32)) for _ in stored]
    assert attention(mx.zeros((2, 1, 16)), stored, spans, 0, EXACT).tolist() == [[[0.0] * 16]] * 2
