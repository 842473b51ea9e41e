"""GGUF files for tests: a small Llama, and the bundled model's vocabulary, written by MLX."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from tests import families
from tests.families import DIM, HIDDEN, LLAMA

from forerun.models.gguf import MODULES
from forerun.models.load import DEMO_MODEL

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
THEIRS = {ours: theirs for theirs, ours in MODULES.items()}


@cache
def vocabulary() -> dict[str, Any]:
    """Metadata of the bundled model's tokenizer, but for the names of its special tokens."""
    whole = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    ids = whole["model"]["vocab"] | {token["content"]: token["id"] for token in whole["added_tokens"]}
    special = {token["content"] for token in whole["added_tokens"] if token["special"]}
    own = {token["content"] for token in whole["added_tokens"]} - special
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [3 if token in special else 4 if token in own else 1 for token in tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": mx.array(kinds, dtype=mx.int32),
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in whole["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": mx.array(ids["<|endoftext|>"], dtype=mx.uint32),
        "tokenizer.chat_template": TEMPLATE,
    }


def architecture() -> dict[str, Any]:
    """Metadata of the small Llama."""
    fields = {
        "embedding_length": HIDDEN,
        "feed_forward_length": families.FFN,
        "block_count": 2,
        "attention.head_count": families.HEADS,
        "attention.head_count_kv": families.KV_HEADS,
        "rope.dimension_count": DIM,
        "context_length": LLAMA["max_position_embeddings"],
        "vocab_size": families.VOCAB,
    }
    numbers: dict[str, Any] = {f"llama.{name}": mx.array(value, dtype=mx.uint32) for name, value in fields.items()}
    numbers["llama.attention.layer_norm_rms_epsilon"] = mx.array(LLAMA["rms_norm_eps"], dtype=mx.float32)
    numbers["llama.rope.freq_base"] = mx.array(LLAMA["rope_theta"], dtype=mx.float32)
    return numbers | {"general.architecture": "llama"}


def turned(name: str, weight: mx.array) -> mx.array:
    """Rows of queries and keys in GGUF's order: pairs are neighbours."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    return weight.reshape(-1, 2, DIM // 2, HIDDEN).swapaxes(1, 2).reshape(-1, HIDDEN)


def their_name(ours: str) -> str:
    """`model.layers.0.mlp.up_proj.weight` as GGUF calls it."""
    module, _, part = ours.rpartition(".")
    if module in THEIRS:
        return f"{THEIRS[module]}.{part}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{THEIRS[inner]}.{part}"


def write(file: Path, **changed: Any) -> Path:
    """The small Llama with the bundled vocabulary in one file; `changed`: metadata by name with . written as __."""
    tensors = {their_name(name): mx.contiguous(turned(name, tensor)) for name, tensor in families.tensors("llama").items()}
    metadata = vocabulary() | architecture() | {name.replace("__", "."): value for name, value in changed.items()}
    mx.save_gguf(str(file), tensors, metadata)
    return file
