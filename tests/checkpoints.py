"""Checkpoints that hold nothing: real headers, real sizes, and a hole where the weights would be. For what must not read weights."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

Shapes = dict[str, tuple[str, tuple[int, ...]]]
BYTES = {"BF16": 2, "F32": 4, "U32": 4, "U8": 1}


def dense(hidden: int, layers: int, ffn: int, heads: int, kv_heads: int, value_heads: int, tied: bool = False) -> dict[str, Any]:
    """config.json of a Qwen3.5 of this size."""
    text = {
        "vocab_size": 248320,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "full_attention_interval": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    }
    return {"model_type": "qwen3_5", "text_config": text}


def tensors(config: dict[str, Any], mtp: bool = True) -> Shapes:
    """Names, types and shapes as on the hub."""
    text, prefix = config["text_config"], "model.language_model"
    vocab, hidden = text["vocab_size"], text["hidden_size"]
    found = {f"{prefix}.embed_tokens.weight": (vocab, hidden), f"{prefix}.norm.weight": (hidden,), "model.visual.patch.weight": (64, 64)}
    if not text["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    for i in range(text["num_hidden_layers"]):
        found |= _layer(f"{prefix}.layers.{i}", text, attention=(i + 1) % text["full_attention_interval"] == 0)
    if mtp:
        found |= {"mtp.fc.weight": (hidden, 2 * hidden)} | _layer("mtp.layers.0", text, attention=True)
        found |= {f"mtp.{name}.weight": (hidden,) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    return {name: ("F32" if name.endswith("A_log") else "BF16", shape) for name, shape in found.items()}


def quantised(found: Shapes, bits: int, group: int) -> Shapes:
    """The same with every matrix of the target as MLX quantises it."""
    packed: Shapes = {}
    for name, (dtype, shape) in found.items():
        if len(shape) == 2 and not name.startswith(("mtp.", "model.visual")):
            scales = (*shape[:-1], shape[-1] // group)
            packed[name] = ("U32", (*shape[:-1], shape[-1] * bits // 32))
            packed |= {name.removesuffix("weight") + part: ("BF16", scales) for part in ("scales", "biases")}
        else:
            packed[name] = (dtype, shape)
    return packed


def write(folder: Path, config: dict[str, Any], found: Shapes, name: str = "model.safetensors") -> Path:
    """A folder with this configuration and these headers; returns the file of weights, which is sparse on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for tensor, (dtype, shape) in found.items():
        start, end = end, end + prod(shape) * BYTES[dtype]
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file = folder / name
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return file


def _layer(prefix: str, text: dict[str, Any], *, attention: bool) -> dict[str, tuple[int, ...]]:
    hidden, ffn = text["hidden_size"], text["intermediate_size"]
    found = {f"mlp.{x}_proj.weight": (ffn, hidden) for x in ("gate", "up")} | {"mlp.down_proj.weight": (hidden, ffn)}
    found |= {f"{x}_layernorm.weight": (hidden,) for x in ("input", "post_attention")}
    found |= _attention(text) if attention else _delta_net(text)
    return {f"{prefix}.{name}": shape for name, shape in found.items()}


def _attention(text: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, dim = text["hidden_size"], text["head_dim"]
    q, kv = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
    outs = {"q_proj": 2 * q, "k_proj": kv, "v_proj": kv}
    found = {f"self_attn.{name}.weight": (out, hidden) for name, out in outs.items()} | {"self_attn.o_proj.weight": (hidden, q)}
    return found | {f"self_attn.{x}_norm.weight": (dim,) for x in ("q", "k")}


def _delta_net(text: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = text["hidden_size"], text["linear_num_value_heads"]
    values = heads * text["linear_value_head_dim"]
    channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + values
    outs = {"in_proj_qkv": channels, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
    found: dict[str, tuple[int, ...]] = {f"linear_attn.{name}.weight": (out, hidden) for name, out in outs.items()}
    found |= {"linear_attn.conv1d.weight": (channels, 1, 4), "linear_attn.out_proj.weight": (hidden, values)}
    found |= {"linear_attn.A_log": (heads,), "linear_attn.dt_bias": (heads,), "linear_attn.norm.weight": (text["linear_value_head_dim"],)}
    return found
