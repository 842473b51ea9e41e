"""Small random checkpoints of every family, named as on the hub, and what is made of them: folders of either kind, models of ours and of
mlx-lm. Widths are multiples of 128, so that every quantisation fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from forerun.kernels.numerics import EXACT, Numerics
from forerun.models.checkpoint import Checkpoint
from forerun.models.families import KINDS
from forerun.models.load import LoadedModel, load
from forerun.models.weights import ReadOptions, Weights

VOCAB, HIDDEN, FFN = 160, 128, 256
DIM, HEADS, KV_HEADS = 32, 4, 2
KEY_HEADS, VALUE_HEADS = 2, 4
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM
Shapes = dict[str, tuple[int, ...]]
Tensors = dict[str, mx.array]

HYBRID: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "linear_key_head_dim": DIM,
    "linear_value_head_dim": DIM,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
QWEN3_5: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": HYBRID | {"model_type": "qwen3_5_text", "rope_parameters": ROPE, "mtp_num_hidden_layers": 1},
}
EXPERTS = 8
MIXTURE = {"num_experts": EXPERTS, "num_experts_per_tok": 3, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
QWEN3_5_MOE: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": QWEN3_5["text_config"] | MIXTURE | {"model_type": "qwen3_5_moe_text"},
}
SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": [1], "norm_topk_prob": True}
QWEN3_NEXT: dict[str, Any] = HYBRID | ROPE | MIXTURE | SPARSE | {"model_type": "qwen3_next"}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "hidden_act": "silu",
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def attention(prefix: str) -> Shapes:
    """Gated attention."""
    outs = {"q_proj": 2 * HEADS * DIM, "k_proj": KV_HEADS * DIM, "v_proj": KV_HEADS * DIM}
    found: Shapes = {f"{prefix}.self_attn.{name}.weight": (out, HIDDEN) for name, out in outs.items()}
    found[f"{prefix}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * DIM)
    return found | {f"{prefix}.self_attn.{x}_norm.weight": (DIM,) for x in "qk"}


def delta_net(prefix: str) -> Shapes:
    """Gated DeltaNet with the projections of Qwen3.5."""
    outs = {"qkv": CHANNELS, "z": VALUE_HEADS * DIM, "b": VALUE_HEADS, "a": VALUE_HEADS}
    return delta_net_core(prefix) | {f"{prefix}.linear_attn.in_proj_{x}.weight": (out, HIDDEN) for x, out in outs.items()}


def delta_net_core(prefix: str) -> Shapes:
    """Gated DeltaNet without its projections."""
    inner = f"{prefix}.linear_attn"
    found: Shapes = {f"{inner}.conv1d.weight": (CHANNELS, 1, 4), f"{inner}.out_proj.weight": (HIDDEN, VALUE_HEADS * DIM)}
    return found | {f"{inner}.A_log": (VALUE_HEADS,), f"{inner}.dt_bias": (VALUE_HEADS,), f"{inner}.norm.weight": (DIM,)}


def feed_forward(prefix: str, width: int = FFN) -> Shapes:
    """SwiGLU."""
    gate_up: Shapes = {f"{prefix}.{x}_proj.weight": (width, HIDDEN) for x in ("gate", "up")}
    return gate_up | {f"{prefix}.down_proj.weight": (HIDDEN, width)}


def block_norms(prefix: str) -> Shapes:
    """The two norms of a layer."""
    return {f"{prefix}.{x}_layernorm.weight": (HIDDEN,) for x in ("input", "post_attention")}


def ends(prefix: str) -> Shapes:
    """Embedding, last norm and head."""
    return {f"{prefix}embed_tokens.weight": (VOCAB, HIDDEN), f"{prefix}norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def draft_head(layer: Shapes) -> Shapes:
    """An MTP head around its layer."""
    norms: Shapes = {f"mtp.{x}.weight": (HIDDEN,) for x in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return layer | norms | {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN)}


def qwen3_5_shapes() -> Shapes:
    """Of QWEN3_5, as on the hub."""
    inner, draft = "model.language_model.", "mtp.layers.0"
    first, second = f"{inner}layers.0", f"{inner}layers.1"
    found = ends(inner) | delta_net(first) | attention(second) | draft_head(attention(draft))
    for layer in (first, second, draft):
        found |= feed_forward(f"{layer}.mlp") | block_norms(layer)
    return found


def mixture(prefix: str, *, is_numbered: bool) -> Shapes:
    """A mixture of experts, its experts fused or numbered."""
    router: Shapes = {f"{prefix}.gate.weight": (EXPERTS, HIDDEN), f"{prefix}.shared_expert_gate.weight": (1, HIDDEN)}
    found = router | feed_forward(f"{prefix}.shared_expert", 128)
    if is_numbered:
        return found | {name: shape for i in range(EXPERTS) for name, shape in feed_forward(f"{prefix}.experts.{i}", 128).items()}
    return found | {f"{prefix}.experts.gate_up_proj": (EXPERTS, 256, HIDDEN), f"{prefix}.experts.down_proj": (EXPERTS, HIDDEN, 128)}


def qwen3_5_moe_shapes() -> Shapes:
    """Of QWEN3_5_MOE, as on the hub."""
    inner, draft = "model.language_model.", "mtp.layers.0"
    first, second = f"{inner}layers.0", f"{inner}layers.1"
    found = ends(inner) | delta_net(first) | attention(second) | draft_head(attention(draft))
    for layer in (first, second, draft):
        found |= mixture(f"{layer}.mlp", is_numbered=False) | block_norms(layer)
    return found


def qwen3_next_shapes() -> Shapes:
    """Of QWEN3_NEXT, as on the hub: its second layer is dense."""
    first, second, draft = "model.layers.0", "model.layers.1", "mtp.layers.0"
    found = ends("model.") | delta_net_core(first) | attention(second) | draft_head(attention(draft))
    found[f"{first}.linear_attn.in_proj_qkvz.weight"] = (CHANNELS + VALUE_HEADS * DIM, HIDDEN)
    found[f"{first}.linear_attn.in_proj_ba.weight"] = (2 * VALUE_HEADS, HIDDEN)
    found |= mixture(f"{first}.mlp", is_numbered=True) | feed_forward(f"{second}.mlp") | mixture(f"{draft}.mlp", is_numbered=True)
    return found | block_norms(first) | block_norms(second) | block_norms(draft)


def llama_shapes() -> Shapes:
    """Of LLAMA, as on the hub; its head is the embedding."""
    found = ends("model.")
    del found["lm_head.weight"]
    for layer in ("model.layers.0", "model.layers.1"):
        outs = {"q_proj": HEADS * DIM, "k_proj": KV_HEADS * DIM, "v_proj": KV_HEADS * DIM, "o_proj": HIDDEN}
        found |= {f"{layer}.self_attn.{name}.weight": (out, HIDDEN) for name, out in outs.items()}
        found |= feed_forward(f"{layer}.mlp") | block_norms(layer)
    return found


SHAPES = {"llama": llama_shapes, "qwen3_5": qwen3_5_shapes, "qwen3_5_moe": qwen3_5_moe_shapes, "qwen3_next": qwen3_next_shapes}
CONFIGS = {"llama": LLAMA, "qwen3_5": QWEN3_5, "qwen3_5_moe": QWEN3_5_MOE, "qwen3_next": QWEN3_NEXT}


def tensors(kind: str, seed: int = 0) -> Tensors:
    """Random tensors of a family, large enough that tokens far back still matter."""
    made = {}
    for i, (name, shape) in enumerate(sorted(SHAPES[kind]().items())):
        normal = mx.random.normal(shape, key=mx.random.key(1000 * seed + i))
        made[name] = normal * (0.2 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5) - 3.0 * name.endswith("A_log")
        if kind == "llama" and len(shape) == 1:
            made[name] += 1.0  # its norms are gains
    return made


def quantised(config: dict[str, Any], named: Tensors) -> tuple[dict[str, Any], Tensors]:
    """The checkpoint with every matrix in 4 bits, groups of 32."""
    made: Tensors = {}
    for name, tensor in named.items():
        if tensor.ndim == 1 or "conv1d" in name:
            made[name] = tensor
            continue
        parts = zip(("weight", "scales", "biases"), mx.quantize(tensor, group_size=32, bits=4), strict=True)
        made |= {f"{name.removesuffix('.weight')}.{part}": array for part, array in parts}
    return config | {"quantization": {"group_size": 32, "bits": 4}}, made


def built(config: Mapping[str, Any], named: Mapping[str, mx.array], numerics: Numerics = EXACT, *, is_dense: bool = True) -> Any:
    """Our model of these tensors, all of which it must need."""
    options = ReadOptions("float32", is_dense, on_tensor=lambda name, tensor: None)
    weights = Weights(Checkpoint.of("here", config, named.items(), has_separate_head=False), options)
    family = KINDS[config["model_type"]].build(weights, numerics)
    weights.done()
    return family


def write_hub(folder: Path, kind: str, named: Tensors, shards: int = 2) -> Path:
    """A checkpoint folder as on the hub, with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    names, weight_map = sorted(named), dict[str, str]()
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        mx.save_safetensors(str(folder / file), {name: named[name] for name in names[i::shards]}, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names[i::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def write_mlx(folder: Path, hub: Path, **quantisation: Any) -> Path:
    """The folder that mlx-lm makes of a hub folder, which has no MTP head; quantised with the arguments of `quantize_model`."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(hub)
    if quantisation:
        model, config = quantize_model(model, config, **quantisation)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    return folder


def mlx_lm_logits(folder: Path, tokens: list[int]) -> mx.array:
    """What mlx-lm computes from a folder, [tokens, vocab]."""
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    found: mx.array = model(mx.array([tokens]))[0]
    return found


def loaded(folder: Path, numerics: Numerics = EXACT) -> LoadedModel:
    """Our model of a folder."""
    return load(folder, numerics, "float32", lambda doing, done_frac: None)
