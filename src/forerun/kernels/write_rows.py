"""Write new rows into a long buffer in place. A kernel of its own, since the obvious form costs the whole buffer on some devices."""

from __future__ import annotations

import mlx.core as mx


def write_rows(buffer: mx.array, rows: mx.array, start: int) -> mx.array:
    """`buffer` [heads, capacity, dim] with `rows` [heads, n, dim] at start..start+n. In place if nobody else holds the buffer.

    A static start: on CUDA `mx.slice_update` with an array as the start costs the capacity (measured), a static slice does not.
    """
    buffer[:, start : start + rows.shape[1]] = rows
    return buffer
