"""A tiny Qwen3.5 with random weights, fast enough for many forward passes, and the bundled model, loaded once a process."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import mlx.core as mx

from forerun.kernels.numerics import EXACT, Numerics
from forerun.models.checkpoint import Checkpoint
from forerun.models.load import DEMO_MODEL, LoadedModel, load
from forerun.models.qwen3_5 import Qwen35
from forerun.models.weights import ReadOptions, Weights

VOCAB, HIDDEN, FFN = 120, 48, 80
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 32, 16
CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attn_output_gate": True,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": KEY_DIM,
        "linear_value_head_dim": VALUE_DIM,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the checkpoint."""
    found: dict[str, tuple[int, ...]] = {
        "model.language_model.embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.language_model.norm.weight": (HIDDEN,),
        "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
        **{f"mtp.{norm}.weight": (HIDDEN,) for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")},
    }
    blocks = {f"model.language_model.layers.{i}": DELTA_NET if i % 2 == 0 else ATTENTION for i in range(4)}
    for prefix, mixer in (blocks | {"mtp.layers.0": ATTENTION}).items():
        found |= {f"{prefix}.{name}": shape for name, shape in (mixer | BLOCK).items()}
    return found


BLOCK = {
    "mlp.gate_proj.weight": (FFN, HIDDEN),
    "mlp.up_proj.weight": (FFN, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, FFN),
    "input_layernorm.weight": (HIDDEN,),
    "post_attention_layernorm.weight": (HIDDEN,),
}
ATTENTION = {
    "self_attn.q_proj.weight": (2 * HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    "self_attn.q_norm.weight": (HEAD_DIM,),
    "self_attn.k_norm.weight": (HEAD_DIM,),
}
DELTA_NET: dict[str, tuple[int, ...]] = {
    "linear_attn.in_proj_qkv.weight": (CHANNELS, HIDDEN),
    "linear_attn.in_proj_z.weight": (VALUE_HEADS * VALUE_DIM, HIDDEN),
    "linear_attn.in_proj_b.weight": (VALUE_HEADS, HIDDEN),
    "linear_attn.in_proj_a.weight": (VALUE_HEADS, HIDDEN),
    "linear_attn.conv1d.weight": (CHANNELS, 1, 4),
    "linear_attn.out_proj.weight": (HIDDEN, VALUE_HEADS * VALUE_DIM),
    "linear_attn.A_log": (VALUE_HEADS,),
    "linear_attn.dt_bias": (VALUE_HEADS,),
    "linear_attn.norm.weight": (VALUE_DIM,),
}


def weights(seed: int) -> dict[str, mx.array]:
    """Random tensors, large enough that tokens far back still matter."""
    made = {}
    for i, (name, shape) in enumerate(sorted(shapes().items())):
        normal = mx.random.normal(shape, key=mx.random.key(1000 * seed + i))
        scale = 0.2 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
        made[name] = normal * scale - 3.0 * name.endswith("A_log")
    return made


@cache
def family(numerics: Numerics = EXACT, seed: int = 0) -> Qwen35:
    """The tiny model."""
    return built(CONFIG, weights(seed), numerics)


@cache
def without_draft() -> Qwen35:
    """The tiny model as a conversion leaves it that drops the MTP head."""
    return built(CONFIG, {name: tensor for name, tensor in weights(0).items() if not name.startswith("mtp.")})


def built(config: Mapping[str, Any], tensors: Mapping[str, mx.array], numerics: Numerics = EXACT) -> Qwen35:
    """A Qwen3.5 of these tensors, all of which it must need."""
    options = ReadOptions("float32", is_dense=True, on_tensor=lambda name, tensor: None)
    weights = Weights(Checkpoint.of("here", config, tensors.items(), has_separate_head=False), options)
    family = Qwen35(weights, numerics)
    weights.done()
    return family


@cache
def demo(numerics: Numerics = EXACT) -> LoadedModel:
    """The bundled model."""
    return load(DEMO_MODEL, numerics, "float32", lambda doing, done_frac: None)


END = 0  # the token that ends a message


def words(seed: object, num: int) -> list[int]:
    """`num` random tokens of the tiny model's vocabulary, END not among them."""
    rng = random.Random(str(seed))
    return [rng.randrange(END + 1, VOCAB) for _ in range(num)]
