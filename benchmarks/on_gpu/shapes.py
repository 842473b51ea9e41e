"""Models of real shapes with random weights, and caches of any length with random rows. Never zeros: some hardware is faster on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx

from forerun.kernels.numerics import FAST
from forerun.models.base import Family
from forerun.models.checkpoint import Checkpoint
from forerun.models.families import KINDS
from forerun.models.moe import Moe
from forerun.models.qwen3_5 import Qwen35
from forerun.models.weights import ReadOptions, Weights
from forerun.state.cache import Cache
from forerun.state.conversion import materialise
from forerun.state.layout import Layout
from forerun.state.store import Arena

DTYPE = "bfloat16"
FULL_ATTENTION_INTERVAL = 4
_ROUTES = ("mlp.gate.weight", "shared_expert_gate.weight", "conv1d.weight")  # not quantised


def _config(hidden: int, layers: int, heads: int, kv_heads: int, value_heads: int, ffn: int, *, tied: bool, **other: int) -> dict[str, Any]:
    text: dict[str, Any] = {"model_type": "qwen3_5_text", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": ffn}
    text |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256, "hidden_act": "silu", "attn_output_gate": True}
    text |= {"linear_num_key_heads": 16, "linear_num_value_heads": value_heads, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    text |= {"linear_conv_kernel_dim": 4, "full_attention_interval": FULL_ATTENTION_INTERVAL, "mtp_num_hidden_layers": 1}
    text |= {"vocab_size": 248_320, "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6, "tie_word_embeddings": tied}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    return {"model_type": "qwen3_5", "tie_word_embeddings": tied, "text_config": text | other}


SHAPES: dict[str, dict[str, Any]] = {
    "0.8B": _config(1024, 24, 8, 2, 16, 3584, tied=True),
    "27B": _config(5120, 64, 24, 4, 48, 17408, tied=False),
    "tiny": _config(64, 4, 4, 2, 4, 96, tied=False, head_dim=64, vocab_size=128, linear_num_key_heads=2, linear_key_head_dim=32),
}


def _mixture(of: Mapping[str, Any], **experts: int) -> dict[str, Any]:
    text = of["text_config"] | experts | {"model_type": "qwen3_5_moe_text"}
    return {"model_type": "qwen3_5_moe", "tie_word_embeddings": of["tie_word_embeddings"], "text_config": text}


def _experts(num: int, chosen: int, ffn: int) -> dict[str, int]:
    sizes = {"moe_intermediate_size": ffn, "shared_expert_intermediate_size": ffn}
    return {"num_experts": num, "num_experts_per_tok": chosen} | sizes


SHAPES["35B-A3B"] = _mixture(_config(2048, 40, 16, 2, 32, 512, tied=False), **_experts(256, 8, 512))
SHAPES["tiny-moe"] = _mixture(SHAPES["tiny"], **_experts(8, 2, 96))
QUANTISED = ("27B", "35B-A3B", "tiny", "tiny-moe")
SHAPES |= {f"{name}-4bit": SHAPES[name] | {"quantization": {"group_size": 32, "bits": 4, "mode": "affine"}} for name in QUANTISED}


def tensors(config: Mapping[str, Any]) -> dict[str, mx.array]:
    """A random checkpoint under the hub's names, but for the head's matrices quantised if config says so.

    Lazy, so that nothing is in memory twice.
    """
    made: dict[str, mx.array] = {}
    for i, (name, shape) in enumerate(_tensor_shapes(config["text_config"])):
        reach = 0.1 if len(shape) == 1 else (3 / shape[-1]) ** 0.5  # a product keeps the variance
        low, high = (-4.0, 0.0) if name.endswith("A_log") else (-reach, reach)
        dtype = mx.float32 if name.endswith("A_log") else mx.bfloat16
        tensor = mx.random.uniform(low, high, shape, dtype=dtype, key=mx.random.key(i))
        made |= _quantised(name, tensor, config["quantization"]) if _is_quantised(name, shape, config) else {name: tensor}
    return made


def _is_quantised(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> bool:
    return "quantization" in config and len(shape) > 1 and not name.startswith("mtp.") and not name.endswith(_ROUTES)


def _quantised(name: str, tensor: mx.array, scheme: Mapping[str, Any]) -> dict[str, mx.array]:
    parts = zip(("weight", "scales", "biases"), mx.quantize(tensor, **scheme), strict=True)
    return {f"{name.removesuffix('weight')}{part}": array for part, array in parts}


def _tensor_shapes(text: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, vocab = text["hidden_size"], text["vocab_size"]
    yield "model.language_model.embed_tokens.weight", (vocab, hidden)
    yield "model.language_model.norm.weight", (hidden,)
    if not text["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)
    for i in range(text["num_hidden_layers"]):
        is_attention = (i + 1) % FULL_ATTENTION_INTERVAL == 0
        yield from _layer(f"model.language_model.layers.{i}", text, is_attention=is_attention)
    yield "mtp.fc.weight", (hidden, 2 * hidden)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"mtp.{name}.weight", (hidden,)
    yield from _layer("mtp.layers.0", text, is_attention=True)


def _layer(prefix: str, text: Mapping[str, Any], *, is_attention: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, dim = text["hidden_size"], text["head_dim"]
    queries, kv = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
    value_heads, value_dim = text["linear_num_value_heads"], text["linear_value_head_dim"]
    values = value_heads * value_dim
    channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + values
    mixer: dict[str, tuple[int, ...]] = {"self_attn.q_proj": (2 * queries, hidden), "self_attn.k_proj": (kv, hidden)}
    mixer |= {"self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, queries)}
    mixer |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    if not is_attention:
        mixer = {"linear_attn.in_proj_qkv": (channels, hidden), "linear_attn.in_proj_z": (values, hidden)}
        mixer |= {"linear_attn.in_proj_b": (value_heads, hidden), "linear_attn.in_proj_a": (value_heads, hidden)}
        mixer |= {"linear_attn.conv1d": (channels, 1, text["linear_conv_kernel_dim"]), "linear_attn.out_proj": (hidden, values)}
        mixer |= {"linear_attn.norm": (value_dim,)}
        yield f"{prefix}.linear_attn.A_log", (value_heads,)
        yield f"{prefix}.linear_attn.dt_bias", (value_heads,)
    mixer |= _feed_forward(text)
    mixer |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    yield from ((f"{prefix}.{name}.weight", shape) for name, shape in mixer.items())


def _feed_forward(text: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, num = text["hidden_size"], text.get("num_experts", 0)
    if not num:
        return _mlp("mlp", hidden, text["intermediate_size"])
    experts = {name: (num, *shape) for name, shape in _mlp("mlp.switch_mlp", hidden, text["moe_intermediate_size"]).items()}
    shared = _mlp("mlp.shared_expert", hidden, text["shared_expert_intermediate_size"])
    return experts | shared | {"mlp.gate": (num, hidden), "mlp.shared_expert_gate": (1, hidden)}


def _mlp(prefix: str, hidden: int, ffn: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.gate_proj": (ffn, hidden), f"{prefix}.up_proj": (ffn, hidden), f"{prefix}.down_proj": (hidden, ffn)}


def random_family(config: Mapping[str, Any]) -> Qwen35:
    """Our model, its weights made one after another on the device."""
    options = ReadOptions(DTYPE, is_dense=False, on_tensor=lambda name, tensor: None)
    weights = Weights(Checkpoint.of("random", config, tensors(config).items(), has_separate_head=False), options)
    family = KINDS[config["model_type"]].build(weights, FAST)
    assert isinstance(family, Qwen35)
    return family


def arrays_of(thing: Any) -> Iterator[mx.array]:
    """Every array inside dataclasses, mappings and sequences."""
    if isinstance(thing, mx.array):
        yield thing
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for field in dataclasses.fields(thing):
            yield from arrays_of(getattr(thing, field.name))
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from arrays_of(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from arrays_of(value)


def weight_bytes(family: Qwen35) -> int:
    """Bytes that a step of one row reads: all weights but the draft head's, of the embedding one row, of experts the chosen ones."""
    everything = {id(a): a.nbytes * _read_frac(family, a) for a in arrays_of(vars(family))}
    draft = [a for name, value in vars(family).items() if name in _OF_THE_DRAFT for a in arrays_of(value)]
    embedding = 0 if family.config.tied else sum(a.nbytes for a in arrays_of(vars(family)["_embedding"]))
    return round(sum(everything.values()) - sum(a.nbytes * _read_frac(family, a) for a in draft) - embedding)


def _read_frac(family: Qwen35, array: mx.array) -> float:
    """How much of a weight one row reads."""
    moe = next((x.mlp.config for x in vars(family)["_layers"] if isinstance(x.mlp, Moe)), None)
    return moe.chosen / moe.experts if moe and array.ndim == 3 and array.shape[0] == moe.experts else 1.0


_OF_THE_DRAFT = ("_join", "_embedding_norm", "_hidden_norm", "_draft_layers", "_draft_norm")


def filled(family: Family, layout: Layout, tokens: int, headroom_tokens: int) -> Cache[Any]:
    """A cache of `tokens` tokens with random rows, in its own arena."""
    cache: Cache[Any] = materialise(Arena(family.spec), [], None, layout, tokens + headroom_tokens)
    for i, buffer in enumerate(cache.store.buffers):
        cache.store.buffers[i] = noise(buffer, i)
        mx.eval(cache.store.buffers[i])
    cache.recurrent = [tuple(noise(a, 1000 + i) for a in layer) for i, layer in enumerate(cache.recurrent)]
    cache.hidden = noise(cache.hidden, 1)
    cache.length = cache.draft_length = tokens
    mx.eval(cache.arrays())
    return cache


def noise(like: mx.array, seed: int) -> mx.array:
    """Normal numbers in the shape and type of an array."""
    return mx.random.normal(like.shape, dtype=like.dtype, key=mx.random.key(seed))


def tokens_of(family: Qwen35, count: int) -> list[int]:
    """Random token ids."""
    return [int(t) for t in mx.random.randint(0, family.vocab, (count,), key=mx.random.key(count)).tolist()]  # type: ignore[union-attr, arg-type]
