"""Keys and values in one array per attention layer, [kv_heads, capacity, head_dim]. Knows no lengths: callers pass positions."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from forerun.kernels.cached_attention import StoredRows, write
from forerun.kernels.row_span import RowSpan
from forerun.kernels.write_rows import write_rows
from forerun.state.host import Host, copy_to_host, host, is_shared, to_device
from forerun.state.layout import Contiguous
from forerun.state.spec import AttentionSpec

CAPACITY_STEP_TOKENS = 256


def round_up(tokens: int) -> int:
    """The capacity that holds `tokens`: a multiple of CAPACITY_STEP_TOKENS, at least two.

    A capacity of one step would select other kernels than larger ones; a growing conversation would then wait for their compilation.
    """
    return max(2, -(-tokens // CAPACITY_STEP_TOKENS)) * CAPACITY_STEP_TOKENS


def capacity_for(tokens: int) -> int:
    """The capacity of an array for `tokens`, from a fixed series that grows by an eighth.

    A compiled step attends over the capacity. It depends on the length alone, so that a restored conversation decodes as fast as one that
    has grown, and conversations share traces.
    """
    capacity = round_up(1)
    while capacity < tokens:
        capacity = round_up(capacity + capacity // 8)
    return capacity


class ContiguousStore:
    """The arrays of one cache; see Store. `buffers`: keys and values of each layer, in the order of a segment."""

    num_blocks, is_lost = 0, False
    layout = Contiguous()

    def __init__(self, buffers: list[mx.array]) -> None:
        self.buffers = buffers

    @classmethod
    def empty(cls, specs: Sequence[AttentionSpec], tokens: int) -> ContiguousStore:
        """A store that holds `tokens`."""
        capacity = capacity_for(tokens)
        return cls([_zeros(s, capacity) for s in specs for _ in "kv"])

    @property
    def capacity(self) -> int:
        return int(self.buffers[0].shape[1])

    @property
    def num_bytes(self) -> int:
        return sum(a.nbytes for a in self.buffers)

    def reserve(self, tokens: int) -> None:
        """Grow by at least an eighth, array by array; each old array is freed before the next one grows."""
        if tokens <= self.capacity:
            return
        capacity = capacity_for(tokens)
        for i in range(len(self.buffers)):
            self.buffers[i] = mx.pad(self.buffers[i], [(0, 0), (0, capacity - self.buffers[i].shape[1]), (0, 0)])
            mx.eval(self.buffers[i])

    def fork(self, stop: int, tokens: int) -> ContiguousStore:
        """Copies the rows, array by array."""
        capacity, copies = capacity_for(max(stop, tokens)), list[mx.array]()
        for a in self.buffers:
            rest = mx.zeros((a.shape[0], capacity - stop, a.shape[2]), dtype=a.dtype)
            copies.append(mx.concatenate([a[:, :stop], rest], axis=1))
            mx.eval(copies[-1])
        return ContiguousStore(copies)

    def own(self, start: int) -> None: ...

    def write(self, layer: int, span: RowSpan, keys: mx.array, values: mx.array) -> None:
        pair = slice(2 * layer, 2 * layer + 2)
        stored_keys, stored_values = self.buffers[pair]
        self.buffers[pair] = write(stored_keys, stored_values, keys, values, span.start, span.positions)

    def stored(self, layer: int) -> StoredRows:
        keys, values = self.buffers[2 * layer : 2 * layer + 2]
        return StoredRows(keys, values)

    def take(self, start: int, stop: int) -> list[mx.array]:
        return [a[:, start:stop] for a in self.buffers]

    def put(self, start: int, rows: Sequence[mx.array]) -> None:
        for i, part in enumerate(rows):
            self.buffers[i] = write_rows(self.buffers[i], part, start)
        mx.eval(self.buffers)

    def rows(self, start: int, stop: int) -> list[Host]:
        if not is_shared():
            return copy_to_host(self.take(start, stop))
        mx.eval(self.buffers)
        return [host(a)[:, start:stop] for a in self.buffers]

    def fill(self, start: int, rows: Sequence[Host]) -> None:
        if not is_shared():
            self.put(start, [to_device(part, a.dtype) for part, a in zip(rows, self.buffers, strict=True)])
            return
        mx.eval(self.buffers)
        for buffer, part in zip(self.buffers, rows, strict=True):
            host(buffer)[:, start : start + part.shape[1]] = part

    def recover(self) -> None: ...

    def constants(self) -> list[mx.array]:
        return []


def _zeros(spec: AttentionSpec, tokens: int) -> mx.array:
    """[kv_heads, tokens, head_dim]."""
    return mx.zeros((spec.kv_heads, tokens, spec.head_dim), dtype=getattr(mx, spec.dtype))
