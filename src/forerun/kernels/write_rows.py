"""Write new rows into a long buffer in place; on some devices the obvious form copies the whole buffer.

In place only if there is no other reference to the buffer; all functions return the buffer to use from then on.
"""

from __future__ import annotations

import mlx.core as mx


def write_rows(buffer: mx.array, rows: mx.array, start: int | mx.array) -> mx.array:
    """`buffer` [heads, capacity, dim] with `rows` [heads, n, dim] at start..start+n; a start that is an array [] may be traced."""
    if isinstance(start, int):
        buffer[:, start : start + rows.shape[1]] = rows
        return buffer
    return put_rows(buffer, rows, start + mx.arange(rows.shape[1], dtype=mx.int32))


def put_rows(buffer: mx.array, rows: mx.array, at: mx.array) -> mx.array:
    """`buffer` [heads, capacity, dim] with `rows` [heads, n, dim] at the rows `at` [n] int32.

    Not by `mx.slice_update`: with an array as the start it costs the capacity on CUDA (measured), `put_along_axis` does not.
    """
    return mx.put_along_axis(buffer, mx.broadcast_to(at[None, :, None], rows.shape), rows, axis=1)
