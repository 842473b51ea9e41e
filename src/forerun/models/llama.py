"""Llama: full attention and SwiGLU, without gates, biases or a draft head. For example SmolLM2 and Llama 3.

Source: the published config and modeling files of the family; tensors as on the hub.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from forerun.errors import ModelError
from forerun.kernels.attention_inputs import AttentionInputs
from forerun.kernels.numerics import Numerics
from forerun.kernels.rope import Rope
from forerun.models.layers import Decoder, Mlp, Norm, rope_fields
from forerun.models.linear import Linear
from forerun.models.weights import Weights
from forerun.state.cache import View
from forerun.state.spec import ArraySpec, AttentionSpec, StateSpec


@dataclass(frozen=True, slots=True)
class Config:
    """The fields of config.json that define the model."""

    hidden: int
    ffn: int
    vocab: int
    context_tokens: int
    eps: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    tied: bool

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Config:
        """Raises ModelError naming a field that is missing or not supported."""
        if config.get("attention_bias") or config.get("mlp_bias") or config.get("hidden_act", "silu") != "silu":
            raise ModelError("config.json: attention_bias, mlp_bias or hidden_act has a value that this family does not support")
        try:
            heads = config["num_attention_heads"]
            head_dim = config.get("head_dim") or config["hidden_size"] // heads
            return cls(
                hidden=config["hidden_size"],
                ffn=config["intermediate_size"],
                vocab=config["vocab_size"],
                context_tokens=config["max_position_embeddings"],
                eps=config["rms_norm_eps"],
                layers=config["num_hidden_layers"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=head_dim,
                rope=_rope(config, head_dim),
                tied=bool(config.get("tie_word_embeddings", False)),
            )
        except KeyError as error:
            raise ModelError(
                f"config.json lacks {error.args[0]!r}", hint="it is not a Llama configuration, or an incomplete one"
            ) from error

    def spec(self, dtype: str) -> StateSpec:
        """The state of a sequence: keys and values of every layer, and the last hidden vector, all in `dtype`."""
        layers = (AttentionSpec(self.kv_heads, self.head_dim, dtype),) * self.layers
        return StateSpec(layers, (), ArraySpec("hidden", (self.hidden,), dtype))


@dataclass(frozen=True, slots=True)
class Layer:
    """Pre-norm residual block: attention, then feed-forward."""

    qkv: Linear
    inputs: AttentionInputs
    out: Linear
    norm: Norm
    mlp: Mlp
    mlp_norm: Norm

    @classmethod
    def read(cls, weights: Weights, prefix: str, c: Config) -> Layer:
        """The layer whose tensors begin with `prefix`."""
        heads = {"q": c.heads, "k": c.kv_heads, "v": c.kv_heads}
        return cls(
            weights.linear(c.hidden, {f"{prefix}.self_attn.{x}_proj": n * c.head_dim for x, n in heads.items()}),
            AttentionInputs(c.heads, c.kv_heads, c.head_dim, c.rope, c.rope.frequencies(), None, is_gated=False),
            weights.linear(c.heads * c.head_dim, {f"{prefix}.self_attn.o_proj": c.hidden}),
            Norm(weights.array(f"{prefix}.input_layernorm.weight", c.hidden), c.eps),
            Mlp.read(weights, f"{prefix}.mlp", c.hidden, c.ffn),
            Norm(weights.array(f"{prefix}.post_attention_layernorm.weight", c.hidden), c.eps),
        )

    def __call__(self, x: mx.array, layer: int, positions: mx.array, view: View) -> mx.array:
        y = view.attend(layer, *self.inputs(self.qkv(self.norm(x)), positions))
        x, h = self.mlp_norm.of_sum(x, self.out(y.reshape(x.shape[0], -1)))
        return x + self.mlp(h)


class Llama(Decoder):
    """The family. `forward`, `head` and `draft` as in models/base.py."""

    name = "llama"

    def __init__(self, weights: Weights, numerics: Numerics) -> None:
        self.config = c = _with_factors(Config.parse(weights.config), weights)
        self.numerics, self.spec = numerics, c.spec(weights.dtype)
        self.vocab, self.context_tokens = c.vocab, c.context_tokens
        self._embedding = weights.linear(c.hidden, {"model.embed_tokens": c.vocab})
        self._layers = [Layer.read(weights, f"model.layers.{i}", c) for i in range(c.layers)]
        self._norm = Norm(weights.array("model.norm.weight", c.hidden), c.eps)
        self._head = weights.head(c.vocab, c.hidden, tied_to=self._embedding if c.tied else None)
        self.linear_shapes = frozenset(weights.shapes)

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        raise NotImplementedError("the family has no draft head (spec.draft_layers is empty)")


def _with_factors(config: Config, weights: Weights) -> Config:
    """The config with periods scaled by factors that are stored as a tensor, as in GGUF files of Llama 3."""
    if not weights.names("rope_freqs."):
        return config
    factors = weights.take("rope_freqs.weight", config.head_dim // 2).astype(mx.float32)
    return replace(config, rope=replace(config.rope, periods=_periods(config.head_dim, config.rope.theta) * factors))


def _periods(dims: int, theta: float) -> mx.array:
    return mx.power(theta, mx.arange(0, dims, 2, dtype=mx.float32) / dims)


def _rope(config: Mapping[str, Any], head_dim: int) -> Rope:
    fields = rope_fields(config)
    kind, theta = fields["rope_type"], fields["rope_theta"]
    if kind not in ("default", "llama3"):
        raise ModelError(f"config.json: rope_type {kind!r} is not supported")
    periods = _stretched(head_dim, theta, fields) if kind == "llama3" else None
    return Rope(head_dim, theta, is_traditional=bool(config.get("rope_traditional", False)), periods=periods)


def _stretched(dims: int, theta: float, fields: Mapping[str, Any]) -> mx.array:
    """Periods [dims / 2] of Llama 3.1's long context: long ones times `factor`, short ones unchanged, interpolated between."""
    factor, low, high = fields["factor"], fields["low_freq_factor"], fields["high_freq_factor"]
    periods = _periods(dims, theta)
    turns = fields["original_max_position_embeddings"] / (2 * math.pi * periods)
    share = mx.clip((turns - low) / (high - low), 0.0, 1.0)
    stretched: mx.array = periods / ((1 - share) / factor + share)
    return stretched
