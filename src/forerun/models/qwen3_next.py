"""Qwen3-Next, the predecessor of Qwen3.5: mixtures of experts, and DeltaNet projections that are interleaved by key head.

Source: the published config and modeling files of the family; tensors as on the hub, where experts are numbered.
"""

from __future__ import annotations

import mlx.core as mx

from forerun.models.layers import FeedForward
from forerun.models.linear import Linear
from forerun.models.moe import Moe, MoeConfig
from forerun.models.qwen3_5 import LayerReader, Qwen35


class _Reader(LayerReader):
    def feed_forward(self, prefix: str, layer: int | None) -> FeedForward:
        if layer is not None and self._is_dense(layer):
            return super().feed_forward(prefix, layer)
        return Moe.read(self.weights, prefix, self.config.hidden, MoeConfig.parse(self.text))

    def projections(self, prefix: str) -> Linear:
        """As in `LayerReader.projections`; the rows are reordered, their bits unchanged."""
        c, share = self.config, self.config.value_heads // self.config.key_heads
        values = share * c.value_dim
        qkvz = _by_kind(c.key_heads, (c.key_dim, c.key_dim, values, values))
        ba = _by_kind(c.key_heads, (share, share))
        parts = {f"{prefix}.in_proj_qkvz": qkvz, f"{prefix}.in_proj_ba": ba}
        return self.weights.joined([self.weights.matrix(path, order.size, c.hidden).reordered(order) for path, order in parts.items()])

    def _is_dense(self, layer: int) -> bool:
        step, dense = self.text.get("decoder_sparse_step", 1), self.text.get("mlp_only_layers") or []
        return layer in dense or (layer + 1) % step != 0


class Qwen3Next(Qwen35):
    """The family. Everything else is as in Qwen3.5."""

    name = "qwen3_next"
    reader = _Reader


def _by_kind(key_heads: int, widths: tuple[int, ...]) -> mx.array:
    """Row indices by kind. Stored order: for each key head `widths[0]` rows of the first kind, then `widths[1]` of the second, ..."""
    rows = mx.arange(key_heads * sum(widths)).reshape(key_heads, -1)
    stops = [sum(widths[: i + 1]) for i in range(len(widths))]
    return mx.concatenate([rows[:, stop - width : stop].reshape(-1) for stop, width in zip(stops, widths, strict=True)])
