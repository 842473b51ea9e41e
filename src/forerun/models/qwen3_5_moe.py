"""Qwen3.5 with mixtures of experts in place of the feed-forward blocks, in the MTP layer too.

Source: the published config and modeling files of the family; tensors as on the hub, where the experts of a layer are one tensor.
"""

from __future__ import annotations

from forerun.models.moe import Moe, MoeConfig
from forerun.models.qwen3_5 import LayerReader, Qwen35


class _Reader(LayerReader):
    def feed_forward(self, prefix: str, layer: int | None) -> Moe:
        return Moe.read(self.weights, prefix, self.config.hidden, MoeConfig.parse(self.text))


class Qwen35Moe(Qwen35):
    """The mixture. Everything else is as in the dense family."""

    name = "qwen3_5_moe"
    reader = _Reader
