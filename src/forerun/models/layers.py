"""Blocks that families share: norms, the gated feed-forward block, the pass over the layers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from forerun.kernels.norms import add_rms_norm, rms_norm
from forerun.kernels.swiglu import swiglu
from forerun.models.linear import Linear
from forerun.models.weights import Weights
from forerun.state.cache import View


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm over the last axis; weight [dim] is the gain (zero-centred checkpoints are shifted on load)."""

    weight: mx.array
    eps: float

    def __call__(self, x: mx.array) -> mx.array:
        return rms_norm(x, self.weight, self.eps)

    def of_sum(self, x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
        """x + y, and its norm."""
        return add_rms_norm(x, y, self.weight, self.eps)


class FeedForward(Protocol):
    """The feed-forward block of a layer: a function of each row alone."""

    def __call__(self, x: mx.array) -> mx.array: ...


@dataclass(frozen=True, slots=True)
class Mlp:
    """SwiGLU: down(silu(gate(x)) * up(x)), gate and up stacked."""

    gate_up: Linear
    down: Linear

    @classmethod
    def read(cls, weights: Weights, prefix: str, hidden: int, ffn: int) -> Mlp:
        """The block whose tensors begin with `prefix`."""
        gate_up = weights.linear(hidden, {f"{prefix}.{x}_proj": ffn for x in ("gate", "up")})
        return cls(gate_up, weights.linear(ffn, {f"{prefix}.down_proj": hidden}))

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(swiglu(self.gate_up(x)))


class DecoderLayer(Protocol):
    """Layer number `layer` over x [rows, hidden] at `positions` [rows]."""

    def __call__(self, x: mx.array, layer: int, positions: mx.array, view: View) -> mx.array: ...


class Decoder:
    """`passes`, `forward` and `head` of models/base.py: embedding, layers, final norm and head, which the family sets."""

    _embedding: Linear
    _layers: Sequence[DecoderLayer]
    _norm: Norm
    _head: Linear

    def passes(self, tokens: mx.array, spans: Sequence[int], view: View) -> Iterator[mx.array]:
        positions, x = view.begin(spans), self._embedding.rows(tokens)
        for i, layer in enumerate(self._layers):
            x = layer(x, i, positions, view)
            yield x
        yield self._norm(x)

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        return deque(self.passes(tokens, spans, view), maxlen=1)[0]

    def head(self, hidden: mx.array) -> mx.array:
        return self._head(hidden).astype(mx.float32)


def rope_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings of a configuration: from `rope_parameters`, or from the older top-level fields."""
    older = {name: config[name] for name in ("rope_theta", "partial_rotary_factor") if name in config}
    fields = {**older, **(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    return fields | {"rope_type": fields.get("rope_type", fields.get("type", "default"))}
