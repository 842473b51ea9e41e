"""Qwen3.5, dense: three gated-DeltaNet layers, then one gated full-attention layer, and so on; one MTP layer as the draft head.

Sources: the published config and modeling files of the family; names of tensors as on the hub. Text only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from forerun.errors import ModelError
from forerun.kernels.delta_inputs import Heads, delta_inputs
from forerun.kernels.numerics import GatedDelta, Numerics
from forerun.models.layers import Linear, Mlp, Norm, Rope, silu
from forerun.models.weights import Weights
from forerun.state.cache import Arrays, View
from forerun.state.spec import ArraySpec, AttentionSpec, RecurrentSpec, StateSpec


@dataclass(frozen=True, slots=True)
class Config:
    """The fields of `text_config` that shape the model."""

    hidden: int
    ffn: int
    vocab: int
    context_tokens: int
    eps: float
    layer_types: tuple[str, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    draft_layers: int
    tied: bool

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Config:
        """From config.json, with or without a nested text_config. Raises ModelError naming a field that is missing or not supported."""
        text = config.get("text_config", config)
        try:
            if text.get("attention_bias") or text.get("hidden_act", "silu") != "silu" or not text.get("attn_output_gate", True):
                raise ModelError(
                    "config.json: attention_bias, hidden_act or attn_output_gate has a value that this family does not support"
                )
            rope, layers, interval = text["rope_parameters"], text["num_hidden_layers"], text.get("full_attention_interval", 4)
            if rope.get("rope_type", "default") != "default":
                raise ModelError(f"config.json: rope_type {rope['rope_type']!r} is not supported")
            every = tuple("full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers))
            return cls(
                hidden=text["hidden_size"],
                ffn=text["intermediate_size"],
                vocab=text["vocab_size"],
                context_tokens=text["max_position_embeddings"],
                eps=text["rms_norm_eps"],
                layer_types=tuple(text.get("layer_types") or every),
                heads=text["num_attention_heads"],
                kv_heads=text["num_key_value_heads"],
                head_dim=text["head_dim"],
                rope=Rope(int(text["head_dim"] * rope["partial_rotary_factor"]), rope["rope_theta"]),
                key_heads=text["linear_num_key_heads"],
                value_heads=text["linear_num_value_heads"],
                key_dim=text["linear_key_head_dim"],
                value_dim=text["linear_value_head_dim"],
                conv_width=text["linear_conv_kernel_dim"],
                draft_layers=text.get("mtp_num_hidden_layers", 0),
                tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            )
        except KeyError as error:
            raise ModelError(
                f"config.json lacks {error.args[0]!r}", hint="it is not a Qwen3.5 configuration, or an incomplete one"
            ) from error

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def spec(self, dtype: str) -> StateSpec:
        """What is kept of a sequence, with keys, values, conv tails and hidden in `dtype` and recurrent matrices in float32."""
        attention = AttentionSpec(self.kv_heads, self.head_dim, dtype)
        recurrent = RecurrentSpec(
            (
                ArraySpec("conv_tail", (self.conv_width - 1, self.conv_channels), dtype),
                ArraySpec("matrix", (self.value_heads, self.value_dim, self.key_dim), "float32"),
            )
        )
        layers = tuple(attention if kind == "full_attention" else recurrent for kind in self.layer_types)
        return StateSpec(layers, (attention,) * self.draft_layers, ArraySpec("hidden", (self.hidden,), dtype))


@dataclass(frozen=True, slots=True)
class Attention:
    """Gated full attention with normalised, partly rotated queries and keys."""

    config: Config
    qkv: Linear
    out: Linear
    q_norm: Norm
    k_norm: Norm

    def __call__(self, x: mx.array, layer: int, positions: mx.array, view: View) -> mx.array:
        c, rows = self.config, x.shape[0]
        q_width, kv_width = c.heads * c.head_dim * 2, c.kv_heads * c.head_dim
        q, k, v = mx.split(self.qkv(x), (q_width, q_width + kv_width), axis=-1)
        q, gate = mx.split(q.reshape(rows, c.heads, 2 * c.head_dim), 2, axis=-1)
        q = c.rope(self.q_norm(q), positions)
        k = c.rope(self.k_norm(k.reshape(rows, c.kv_heads, c.head_dim)), positions)
        y = view.attend(layer, q, k, v.reshape(rows, c.kv_heads, c.head_dim))
        return self.out((y * mx.sigmoid(gate)).reshape(rows, -1))


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated DeltaNet: a short convolution, then the gated delta rule, normalised and gated."""

    config: Config
    gated_delta: GatedDelta
    projections: Linear
    out: Linear
    conv: mx.array
    decay_rate: mx.array
    dt_bias: mx.array
    norm: Norm

    def __call__(self, x: mx.array, layer: int, view: View) -> mx.array:
        c, rows = self.config, x.shape[0]
        width = c.value_heads * c.value_dim
        borders = (c.conv_channels, c.conv_channels + width, c.conv_channels + width + c.value_heads)
        qkv, z, b, a = mx.split(self.projections(x), borders, axis=-1)
        decay = mx.exp(-self.decay_rate * mx.logaddexp(a.astype(mx.float32) + self.dt_bias, 0.0))
        y = view.recur(layer, self.rule, (qkv, decay, mx.sigmoid(b)))
        y = self.norm(y.astype(x.dtype)) * silu(z.reshape(rows, c.value_heads, c.value_dim))
        return self.out(y.reshape(rows, -1))

    def rule(self, state: Arrays, inputs: Arrays) -> tuple[mx.array, Arrays]:
        """One sequence's rows. state: conv tail, matrix; inputs: q, k, v as projected [rows, channels], decay, beta [rows, value_heads]."""
        c, (tail, matrix), (qkv, decay, beta) = self.config, state, inputs
        heads = Heads(c.key_heads, c.key_dim, c.value_heads, c.value_dim)
        q, k, v, tail = delta_inputs(tail, qkv, self.conv, heads)
        y, matrix = self.gated_delta(q, k, v, decay, beta, matrix)
        return y, (tail, matrix)


@dataclass(frozen=True, slots=True)
class Layer:
    """Pre-norm residual block: mixer, then feed-forward."""

    mixer: Attention | DeltaNet
    mixer_norm: Norm
    mlp: Mlp
    mlp_norm: Norm

    def __call__(self, x: mx.array, layer: int, positions: mx.array, view: View) -> mx.array:
        h = self.mixer_norm(x)
        x = x + (self.mixer(h, layer, positions, view) if isinstance(self.mixer, Attention) else self.mixer(h, layer, view))
        return x + self.mlp(self.mlp_norm(x))


class Qwen35:
    """The dense family. `forward`, `head` and `draft` as in models/base.py."""

    name = "qwen3_5"

    def __init__(self, config: Mapping[str, Any], tensors: dict[str, mx.array], numerics: Numerics, dtype: str, origin: str) -> None:
        self.config = Config.parse(config)
        self.numerics, self.spec = numerics, self.config.spec(dtype)
        self.vocab, self.context_tokens = self.config.vocab, self.config.context_tokens
        reader = _Reader(self.config, numerics, Weights(tensors, origin=origin), getattr(mx, dtype))
        self._embedding = reader.take("model.language_model.embed_tokens.weight", self.vocab, self.config.hidden)
        self._head = self._embedding if self.config.tied else reader.take("lm_head.weight", self.vocab, self.config.hidden)
        prefix = "model.language_model.layers"
        self._layers = [reader.layer(f"{prefix}.{i}", kind) for i, kind in enumerate(self.config.layer_types)]
        self._norm = reader.norm("model.language_model.norm.weight", self.config.hidden)
        if self.config.draft_layers:
            self._read_draft(reader)
        reader.weights.done()
        self.linear_shapes = frozenset(reader.shapes | {(self.vocab, self.config.hidden)})

    def forward(self, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        positions, x = view.begin(spans), self._embedding[tokens]
        for i, layer in enumerate(self._layers):
            x = layer(x, i, positions, view)
        return self._norm(x)

    def head(self, hidden: mx.array) -> mx.array:
        return (hidden @ self._head.T).astype(mx.float32)

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        positions = view.begin_draft(spans)
        x = self._join(mx.concatenate([self._embedding_norm(self._embedding[tokens]), self._hidden_norm(hidden)], axis=-1))
        for i, layer in enumerate(self._draft_layers, start=len(self._layers)):
            x = layer(x, i, positions, view)
        return self._draft_norm(x)

    def _read_draft(self, reader: _Reader) -> None:
        hidden = self.config.hidden
        self._join = reader.linear("mtp.fc.weight", hidden, 2 * hidden)
        self._embedding_norm = reader.norm("mtp.pre_fc_norm_embedding.weight", hidden)
        self._hidden_norm = reader.norm("mtp.pre_fc_norm_hidden.weight", hidden)
        self._draft_layers = [reader.layer(f"mtp.layers.{i}", "full_attention") for i in range(self.config.draft_layers)]
        self._draft_norm = reader.norm("mtp.norm.weight", hidden)


class _Reader:
    """Turns hub tensors into layers: casts, shifts zero-centred norms (1 + weight, in float32), stacks projections."""

    def __init__(self, config: Config, numerics: Numerics, weights: Weights, dtype: mx.Dtype) -> None:
        self.config, self.numerics, self.weights, self.dtype = config, numerics, weights, dtype
        self.shapes: set[tuple[int, int]] = set()

    def take(self, name: str, *shape: int) -> mx.array:
        return self.weights.take(name, *shape).astype(self.dtype)

    def linear(self, name: str, out: int, inner: int) -> Linear:
        return self._linear(self.take(name, out, inner))

    def norm(self, name: str, dim: int) -> Norm:
        return Norm((self.weights.take(name, dim).astype(mx.float32) + 1.0).astype(self.dtype), self.config.eps)

    def layer(self, prefix: str, kind: str) -> Layer:
        c = self.config
        mixer = self._attention(f"{prefix}.self_attn") if kind == "full_attention" else self._delta_net(f"{prefix}.linear_attn")
        gate, up = (self.take(f"{prefix}.mlp.{x}_proj.weight", c.ffn, c.hidden) for x in ("gate", "up"))
        return Layer(
            mixer,
            self.norm(f"{prefix}.input_layernorm.weight", c.hidden),
            Mlp(self._linear(gate, up), self.linear(f"{prefix}.mlp.down_proj.weight", c.hidden, c.ffn)),
            self.norm(f"{prefix}.post_attention_layernorm.weight", c.hidden),
        )

    def _attention(self, prefix: str) -> Attention:
        c, width = self.config, self.config.kv_heads * self.config.head_dim
        q = self.take(f"{prefix}.q_proj.weight", c.heads * c.head_dim * 2, c.hidden)
        k, v = (self.take(f"{prefix}.{x}_proj.weight", width, c.hidden) for x in ("k", "v"))
        out = self.linear(f"{prefix}.o_proj.weight", c.hidden, c.heads * c.head_dim)
        norms = [self.norm(f"{prefix}.{x}_norm.weight", c.head_dim) for x in ("q", "k")]
        return Attention(c, self._linear(q, k, v), out, *norms)

    def _delta_net(self, prefix: str) -> DeltaNet:
        c, width = self.config, self.config.value_heads * self.config.value_dim
        outs = {"qkv": c.conv_channels, "z": width, "b": c.value_heads, "a": c.value_heads}
        projections = [self.take(f"{prefix}.in_proj_{x}.weight", out, c.hidden) for x, out in outs.items()]
        conv = self.take(f"{prefix}.conv1d.weight", c.conv_channels, 1, c.conv_width)
        return DeltaNet(
            c,
            self.numerics.gated_delta,
            self._linear(*projections),
            self.linear(f"{prefix}.out_proj.weight", c.hidden, width),
            mx.contiguous(conv[:, 0].T),
            mx.exp(self.weights.take(f"{prefix}.A_log", c.value_heads).astype(mx.float32)),
            self.weights.take(f"{prefix}.dt_bias", c.value_heads).astype(mx.float32),
            Norm(self.take(f"{prefix}.norm.weight", c.value_dim), c.eps),
        )

    def _linear(self, *weights: mx.array) -> Linear:
        linear = Linear.stacked(*weights)
        self.shapes.add((linear.weight.shape[0], linear.weight.shape[1]))
        return linear
