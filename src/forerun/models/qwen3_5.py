"""Qwen3.5, dense: three gated-DeltaNet layers, then one gated full-attention layer, and so on; one MTP layer as the draft head.

Sources: the published config and modeling files of the family; tensor names as on the hub. Text only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from forerun.errors import ModelError
from forerun.kernels.attention_inputs import AttentionInputs, HeadNorms
from forerun.kernels.delta_inputs import Heads
from forerun.kernels.delta_net import DeltaNet, Parameters, delta_net
from forerun.kernels.numerics import Numerics
from forerun.kernels.rope import Rope
from forerun.models import norms
from forerun.models.layers import Decoder, FeedForward, Mlp, Norm, rope_fields
from forerun.models.linear import Linear
from forerun.models.weights import Weights
from forerun.state.cache import View
from forerun.state.spec import ArraySpec, AttentionSpec, RecurrentSpec, StateSpec


@dataclass(frozen=True, slots=True)
class Config:
    """The fields of `text_config` that define the model."""

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
            rope = rope_fields(text)
            _check_supported(text, rope)
            return cls(
                hidden=text["hidden_size"],
                ffn=text.get("intermediate_size", 0),
                vocab=text["vocab_size"],
                context_tokens=text["max_position_embeddings"],
                eps=text["rms_norm_eps"],
                layer_types=tuple(text.get("layer_types") or _every_few(text)),
                heads=text["num_attention_heads"],
                kv_heads=text["num_key_value_heads"],
                head_dim=text["head_dim"],
                rope=Rope(int(text["head_dim"] * rope["partial_rotary_factor"]), rope["rope_theta"]),
                key_heads=text["linear_num_key_heads"],
                value_heads=text["linear_num_value_heads"],
                key_dim=text["linear_key_head_dim"],
                value_dim=text["linear_value_head_dim"],
                conv_width=text["linear_conv_kernel_dim"],
                draft_layers=text.get("mtp_num_hidden_layers", 1),
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
        """The state of a sequence, with keys, values, conv tails and hidden in `dtype` and recurrent matrices in float32."""
        attention = AttentionSpec(self.kv_heads, self.head_dim, dtype)
        recurrent = RecurrentSpec(
            (
                ArraySpec("conv_tail", (self.conv_width - 1, self.conv_channels), dtype),
                ArraySpec("matrix", (self.value_heads, self.value_dim, self.key_dim), "float32"),
            )
        )
        layers = tuple(attention if kind == "full_attention" else recurrent for kind in self.layer_types)
        return StateSpec(layers, (attention,) * self.draft_layers, ArraySpec("hidden", (self.hidden,), dtype))


def _check_supported(text: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    if text.get("attention_bias") or text.get("hidden_act", "silu") != "silu" or not text.get("attn_output_gate", True):
        raise ModelError("config.json: attention_bias, hidden_act or attn_output_gate has a value that this family does not support")
    if rope["rope_type"] != "default":
        raise ModelError(f"config.json: rope_type {rope['rope_type']!r} is not supported")


def _every_few(text: Mapping[str, Any]) -> Iterator[str]:
    """Layer types where they are not listed: every `full_attention_interval`-th layer attends to all tokens."""
    interval = text.get("full_attention_interval", 4)
    return ("linear_attention" if (i + 1) % interval else "full_attention" for i in range(text["num_hidden_layers"]))


@dataclass(frozen=True, slots=True)
class Attention:
    """Gated full attention with normalised, partly rotated queries and keys."""

    qkv: Linear
    inputs: AttentionInputs
    out: Linear

    def __call__(self, x: mx.array, layer: int, positions: mx.array, view: View) -> mx.array:
        projected = self.qkv(x)
        y = view.attend(layer, *self.inputs(projected, positions))
        return self.out(self.inputs.gated(y, projected))


@dataclass(frozen=True, slots=True)
class DeltaNetMixer:
    """Gated DeltaNet: a short convolution, then the gated delta rule, normalised and gated."""

    projections: Linear
    net: DeltaNet
    out: Linear

    def __call__(self, x: mx.array, layer: int, view: View) -> mx.array:
        projected = self.projections(x)
        y = view.recur(layer, self.net.rule, self.net.inputs(projected))
        return self.out(self.net.output(y, projected))


@dataclass(frozen=True, slots=True)
class Layer:
    """Pre-norm residual block: mixer, then feed-forward."""

    mixer: Attention | DeltaNetMixer
    mixer_norm: Norm
    mlp: FeedForward
    mlp_norm: Norm

    def __call__(self, x: mx.array, layer: int, positions: mx.array, view: View) -> mx.array:
        h = self.mixer_norm(x)
        y = self.mixer(h, layer, positions, view) if isinstance(self.mixer, Attention) else self.mixer(h, layer, view)
        x, h = self.mlp_norm.of_sum(x, y)
        return x + self.mlp(h)


class LayerReader:
    """Makes layers from tensors: stacks projections of the same input and converts zero-centred norms to gains. text: the config's fields.

    Related families override what differs.
    """

    def __init__(self, config: Config, numerics: Numerics, weights: Weights) -> None:
        self.config, self.numerics, self.weights = config, numerics, weights
        self.text: Mapping[str, Any] = weights.config.get("text_config", weights.config)
        conv = weights.peek(f"model.layers.{config.layer_types.index('linear_attention')}.linear_attn.conv1d.weight")
        self._target = self._mtp = norms.of_target(weights.config, conv)
        weights.notes.append(f"norms of the target: {self._target}")
        if config.draft_layers:
            self._mtp = norms.of_mtp(weights, self._target)
            weights.notes.append(f"norms of the MTP head: {self._mtp}")

    def linear(self, path: str, out: int, inner: int) -> Linear:
        return self.weights.linear(inner, {path: out})

    def norm(self, name: str, dim: int) -> Norm:
        convention = self._mtp if name.startswith("mtp.") else self._target
        return Norm(self.weights.gain(name, dim, is_zero_centred=convention.is_zero_centred), self.config.eps)

    def layer(self, prefix: str, kind: str, layer: int | None) -> Layer:
        """The layer whose tensors begin with `prefix`; its number in the target model, None in the MTP head."""
        c = self.config
        mixer = self._attention(f"{prefix}.self_attn") if kind == "full_attention" else self._delta_net(f"{prefix}.linear_attn")
        return Layer(
            mixer,
            self.norm(f"{prefix}.input_layernorm.weight", c.hidden),
            self.feed_forward(f"{prefix}.mlp", layer),
            self.norm(f"{prefix}.post_attention_layernorm.weight", c.hidden),
        )

    def feed_forward(self, prefix: str, layer: int | None) -> FeedForward:
        """The block after a layer's mixer."""
        return Mlp.read(self.weights, prefix, self.config.hidden, self.config.ffn)

    def projections(self, prefix: str) -> Linear:
        """The input projections of a DeltaNet layer, stacked: queries, keys and values, gates z, betas and decays."""
        c = self.config
        outs = {"qkv": c.conv_channels, "z": c.value_heads * c.value_dim, "b": c.value_heads, "a": c.value_heads}
        return self.weights.linear(c.hidden, {f"{prefix}.in_proj_{x}": out for x, out in outs.items()})

    def _attention(self, prefix: str) -> Attention:
        c, width = self.config, self.config.kv_heads * self.config.head_dim
        outs = {f"{prefix}.q_proj": c.heads * c.head_dim * 2, f"{prefix}.k_proj": width, f"{prefix}.v_proj": width}
        out = self.linear(f"{prefix}.o_proj", c.hidden, c.heads * c.head_dim)
        q_gain, k_gain = (self.norm(f"{prefix}.{x}_norm.weight", c.head_dim).weight for x in ("q", "k"))
        norms = HeadNorms(q_gain, k_gain, c.eps)
        inputs = AttentionInputs(c.heads, c.kv_heads, c.head_dim, c.rope, c.rope.frequencies(), norms, is_gated=True)
        return Attention(self.weights.linear(c.hidden, outs), inputs, out)

    def _delta_net(self, prefix: str) -> DeltaNetMixer:
        c, evaluated, width = self.config, self.weights.evaluated, self.config.value_heads * self.config.value_dim
        parameters = Parameters(
            Heads(c.key_heads, c.key_dim, c.value_heads, c.value_dim),
            self._conv(f"{prefix}.conv1d.weight"),
            evaluated(mx.exp(self.weights.take(f"{prefix}.A_log", c.value_heads).astype(mx.float32))),
            evaluated(self.weights.take(f"{prefix}.dt_bias", c.value_heads).astype(mx.float32)),
            self.weights.array(f"{prefix}.norm.weight", c.value_dim),
            c.eps,
        )
        net, out = delta_net(parameters, self.numerics.gated_delta), self.linear(f"{prefix}.out_proj", c.hidden, width)
        return DeltaNetMixer(self.projections(prefix), net, out)

    def _conv(self, name: str) -> mx.array:
        """The convolution's weight [width, channels], stored [channels, 1, width] or, in MLX, [channels, width, 1]."""
        channels, width = self.config.conv_channels, self.config.conv_width
        if self.weights.peek(name).shape == (channels, width, 1):
            return self.weights.evaluated(mx.contiguous(self.weights.array(name, channels, width, 1)[..., 0].T))
        return self.weights.evaluated(mx.contiguous(self.weights.array(name, channels, 1, width)[:, 0].T))


class Qwen35(Decoder):
    """The dense family. `forward`, `head` and `draft` as in models/base.py."""

    name = "qwen3_5"
    reader: type[LayerReader] = LayerReader

    def __init__(self, weights: Weights, numerics: Numerics) -> None:
        self.config = Config.parse(weights.config)
        if not weights.names("mtp."):  # some conversions drop the head but not its configuration
            self.config = replace(self.config, draft_layers=0)
        self.numerics, self.spec = numerics, self.config.spec(weights.dtype)
        self.vocab, self.context_tokens = self.config.vocab, self.config.context_tokens
        reader = self.reader(self.config, numerics, weights)
        self._embedding = weights.linear(self.config.hidden, {"model.embed_tokens": self.vocab})
        self._head = weights.head(self.vocab, self.config.hidden, tied_to=self._embedding if self.config.tied else None)
        self._layers = [reader.layer(f"model.layers.{i}", kind, i) for i, kind in enumerate(self.config.layer_types)]
        self._norm = reader.norm("model.norm.weight", self.config.hidden)
        if self.config.draft_layers:
            self._read_draft(reader)
        self.linear_shapes = frozenset(weights.shapes)

    def draft(self, hidden: mx.array, tokens: mx.array, spans: Sequence[int], view: View) -> mx.array:
        positions = view.begin_draft(spans)
        x = self._join(mx.concatenate([self._embedding_norm(self._embedding.rows(tokens)), self._hidden_norm(hidden)], axis=-1))
        for i, layer in enumerate(self._draft_layers, start=len(self._layers)):
            x = layer(x, i, positions, view)
        return self._draft_norm(x)

    def _read_draft(self, reader: LayerReader) -> None:
        hidden = self.config.hidden
        self._join = reader.linear("mtp.fc", hidden, 2 * hidden)
        self._embedding_norm = reader.norm("mtp.pre_fc_norm_embedding.weight", hidden)
        self._hidden_norm = reader.norm("mtp.pre_fc_norm_hidden.weight", hidden)
        self._draft_layers = [reader.layer(f"mtp.layers.{i}", "full_attention", None) for i in range(self.config.draft_layers)]
        self._draft_norm = reader.norm("mtp.norm.weight", hidden)
