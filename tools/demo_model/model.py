"""The Qwen3.5 text architecture with one MTP module, in plain PyTorch for training: whole sequences, no cache.

Parameter names and conventions are the hub's: norm weights are zero-centred (gain = 1 + weight) except `linear_attn.norm`, query and
output gate share `q_proj` head by head, and `mtp.fc` reads [embedding, hidden]. The residual stream stays in float32; `dtype` of a
module is what its products are computed in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deltanet import gated_delta_rule


@dataclass(frozen=True)
class Config:
    """The fields of `text_config` that the architecture is made of. rotary_dim: leading dimensions of a head that are rotated."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    full_attention_interval: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_key_head_dim: int
    linear_num_value_heads: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    eos_token_id: int


def read_config(path: Path) -> Config:
    """The Config of a model's config.json."""
    text = json.loads(path.read_text())["text_config"]
    rope = text["rope_parameters"]
    text |= {"rope_theta": rope["rope_theta"], "rotary_dim": int(text["head_dim"] * rope["partial_rotary_factor"])}
    return Config(**{field.name: text[field.name] for field in fields(Config)})


class Norm(nn.Module):
    """RMSNorm with a zero-centred weight; computes in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(dim)), eps

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """x normalised, in `dtype` or else its own."""
        return (unit_rms(x.float(), self.eps) * (1 + self.weight)).to(dtype or x.dtype)


class Linear(nn.Module):
    """A linear layer without bias, in the type of its input; `std` of the first weights is 1 / sqrt(inputs) times `scale`."""

    def __init__(self, outputs: int, inputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (scale * inputs**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Weight(nn.Module):
    """A bare `weight`, to give a parameter its name on the hub."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = Linear(config.intermediate_size, config.hidden_size)
        self.up_proj = Linear(config.intermediate_size, config.hidden_size)
        self.down_proj = Linear(config.hidden_size, config.intermediate_size, scale=0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Gated grouped-query attention with q/k norms and partial rotary positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        heads, kv_heads, dim, hidden = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.hidden_size
        self.q_proj = Linear(heads * dim * 2, hidden)
        self.k_proj = Linear(kv_heads * dim, hidden)
        self.v_proj = Linear(kv_heads * dim, hidden)
        self.o_proj = Linear(hidden, heads * dim, scale=0.2)
        self.q_norm, self.k_norm = Norm(dim, config.rms_norm_eps), Norm(dim, config.rms_norm_eps)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v [batch, heads, tokens, dim], keys and values repeated for their group, and the gate [batch, tokens, heads, dim]."""
        config = self.config
        q, gate = self.q_proj(x).unflatten(-1, (config.num_attention_heads, 2 * config.head_dim)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (config.num_key_value_heads, config.head_dim))
        v = self.v_proj(x).unflatten(-1, (config.num_key_value_heads, config.head_dim)).transpose(1, 2)
        q = rotate(self.q_norm(q).transpose(1, 2), positions, config)
        k = rotate(self.k_norm(k).transpose(1, 2), positions, config)
        group = config.num_attention_heads // config.num_key_value_heads
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), gate

    def finish(self, y: Tensor, gate: Tensor) -> Tensor:
        """The layer's output from what was attended to, y [batch, heads, tokens, dim]."""
        return self.o_proj((y.transpose(1, 2) * torch.sigmoid(gate)).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, gate = self.project(x, torch.arange(x.shape[1], device=x.device))
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=True), gate)


class DeltaNet(nn.Module):
    """Gated DeltaNet mixer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.linear_num_value_heads
        self.key_width = config.linear_num_key_heads * config.linear_key_head_dim
        self.value_width = heads * config.linear_value_head_dim
        width = 2 * self.key_width + self.value_width
        self.in_proj_qkv = Linear(width, hidden)
        self.in_proj_z = Linear(self.value_width, hidden)
        self.in_proj_b = Linear(heads, hidden)
        self.in_proj_a = Linear(heads, hidden, scale=0.1)
        self.conv1d = Weight(torch.randn(width, 1, config.linear_conv_kernel_dim) * 0.5)
        # Decay rates between about 1/1000 and 1/2 a token.
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        step = torch.exp(torch.linspace(-7, -2.5, heads))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = Weight(torch.ones(config.linear_value_head_dim))
        self.out_proj = Linear(hidden, self.value_width, scale=0.2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._mixed(x)
        beta = torch.sigmoid(self.in_proj_b(x).float())
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        y = unit_rms(gated_delta_rule(q, k, v, g, beta).float(), self.config.rms_norm_eps)
        z = self.in_proj_z(x).unflatten(-1, y.shape[2:]).float()
        return self.out_proj((y * self.norm.weight * F.silu(z)).to(x.dtype).flatten(2))

    def _mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [batch, tokens, heads, dim] after the causal convolution; q and k of length one, q scaled."""
        config, rows = self.config, self.in_proj_qkv(x)
        taps = self.conv1d.weight.to(x.dtype)[:, 0].unbind(1)
        padded = F.pad(rows, (0, 0, len(taps) - 1, 0))
        rows = F.silu(sum(padded[:, tap : tap + x.shape[1]] * weight for tap, weight in enumerate(taps)))
        q, k, v = rows.split([self.key_width, self.key_width, self.value_width], -1)
        heads = (config.linear_num_key_heads, config.linear_key_head_dim)
        q, k = unit_length(q.unflatten(-1, heads)) * config.linear_key_head_dim**-0.5, unit_length(k.unflatten(-1, heads))
        return q.to(x.dtype), k.to(x.dtype), v.unflatten(-1, (config.linear_num_value_heads, config.linear_value_head_dim))


class Layer(nn.Module):
    """A pre-norm residual layer with full attention or gated DeltaNet."""

    def __init__(self, config: Config, *, is_full: bool) -> None:
        super().__init__()
        self.is_full, self.dtype = is_full, torch.float32
        if is_full:
            self.self_attn = Attention(config)
        else:
            self.linear_attn = DeltaNet(config)
        self.mlp = Mlp(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        mixer = self.self_attn if self.is_full else self.linear_attn
        return self.with_mlp(x + mixer(self.input_layernorm(x, self.dtype)))

    def with_mlp(self, x: Tensor) -> Tensor:
        """x after the second half of the layer."""
        return x + self.mlp(self.post_attention_layernorm(x, self.dtype))


class Mtp(nn.Module):
    """One multi-token-prediction module, applied recursively for deeper drafts."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc = Linear(hidden, 2 * hidden)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(hidden, config.rms_norm_eps), Norm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config, is_full=True)])
        self.norm = Norm(hidden, config.rms_norm_eps)
        self.dtype = torch.float32

    def join(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Rows [batch, tokens, hidden] of the module's layer: a token's embedding next to the hidden vector before it."""
        parts = [self.pre_fc_norm_embedding(embedding, self.dtype), self.pre_fc_norm_hidden(hidden, self.dtype)]
        return self.fc(torch.cat(parts, -1)).float()

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """The first draft step of every position: row p sees rows 0..p."""
        return self.norm(self.layers[0](self.join(embedding, hidden)))

    def draft_steps(self, hidden: Tensor, embeddings: Sequence[Tensor]) -> list[Tensor]:
        """Hidden vectors of all draft steps of every position, with the attention that drafting has.

        Step s of position p attends to the first-step rows 0..p, which are made of the target's hidden vectors, and to the rows of its
        own later steps. embeddings[s] [batch, tokens, hidden]: of the token that step s reads at each position.
        """
        layer, made = self.layers[0], []
        keys, values, masks = [], [], []
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        for step, embedding in enumerate(embeddings):
            x = self.join(embedding, hidden)
            q, k, v, gate = layer.self_attn.project(layer.input_layernorm(x, self.dtype), positions + step)
            keys.append(k)
            values.append(v)
            masks.append(positions[None] == positions[:, None] if step else positions[None] <= positions[:, None])
            x = x + layer.self_attn.finish(_attend_to_all(q, keys, values, masks), gate)
            hidden = self.norm(layer.with_mlp(x))
            made.append(hidden)
        return made


class Embedding(nn.Module):
    """Token embeddings."""

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(tokens, dim) * 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class Target(nn.Module):
    """From token ids [batch, tokens] to hidden vectors after the final norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        interval = config.full_attention_interval
        self.layers = nn.ModuleList([Layer(config, is_full=index % interval == interval - 1) for index in range(config.num_hidden_layers)])
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Model(nn.Module):
    """Target and MTP module; embedding and output head are shared."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model, self.mtp = Target(config), Mtp(config)

    def compute_in(self, dtype: torch.dtype) -> None:
        """Compute products in `dtype` from now on; weights and residual stream stay as they are."""
        for module in self.modules():
            if isinstance(module, (Layer, Mtp)):
                module.dtype = dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab] of hidden vectors of the target or of a draft step."""
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))


def rotate(x: Tensor, positions: Tensor, config: Config) -> Tensor:
    """x [batch, heads, tokens, dim] with its first `rotary_dim` dimensions rotated, halves paired."""
    dims = config.rotary_dim
    frequencies = config.rope_theta ** (-torch.arange(0, dims, 2, device=x.device, dtype=torch.float32) / dims)
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., : dims // 2].float(), x[..., dims // 2 : dims].float()
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), x[..., dims:]], -1)


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x with a root mean square of one along the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def unit_length(x: Tensor) -> Tensor:
    """x in float32 with length one along the last axis."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _attend_to_all(q: Tensor, keys: list[Tensor], values: list[Tensor], masks: list[Tensor]) -> Tensor:
    if len(keys) == 1:
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
    return F.scaled_dot_product_attention(q, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=torch.cat(masks, 1))
