"""A checkpoint in one GGUF file of llama.cpp: Llama, with weights as the file has them.

Quantised matrices are arrays of the file's own blocks, named by their format: `model.layers.0.mlp.up_proj.q4_k` [out, bytes of a row].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from forerun.errors import UnsupportedError
from forerun.models.checkpoint import Checkpoint
from forerun.text.gguf import TensorEntry, read_head

MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "rope.dimension_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
PLAIN = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(\w+)")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The file, its metadata in the form of config.json, and its tensors under the hub's names, without values."""

    path: Path
    config: Mapping[str, Any]
    tensors: tuple[tuple[str, TensorEntry], ...]

    @classmethod
    def find(cls, path: Path) -> GgufFile:
        """Raises ModelError, UnsupportedError (another architecture)."""
        metadata, tensors = read_head(path)
        config = _config(metadata, path) | {"tie_word_embeddings": "output.weight" not in tensors}
        return cls(path, config, tuple((_hub_name(name), entry) for name, entry in tensors.items()))

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def open(self) -> Checkpoint:
        """Its checkpoint, the tensors in memory."""
        named = [(_with_format(name, entry), self._values(entry)) for name, entry in self.tensors]
        return Checkpoint.of(str(self.path), self.config, named, has_separate_head=False)

    def _values(self, entry: TensorEntry) -> mx.array:
        """A tensor as stored: plain, or the bytes of its blocks."""
        values = mx.array(np.memmap(self.path, np.uint8, "r", entry.start, (entry.stop - entry.start,)))
        return (values.view(PLAIN[entry.type.name]) if entry.type.name in PLAIN else values).reshape(*entry.stored_shape)


def _config(metadata: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kind = metadata.get("general.architecture")
    if kind != "llama":
        hint = "GGUF files of Llama's architecture are read; take a Hugging Face or MLX folder of this model"
        raise UnsupportedError(f"{path}: architecture {kind!r} cannot be read", hint=hint)
    config = {field: metadata[f"llama.{key}"] for field, key in FIELDS.items() if f"llama.{key}" in metadata}
    scaling = metadata.get("llama.rope.scaling.type", "none")
    config["rope_scaling"] = None if scaling == "none" else {"rope_type": scaling}
    config["vocab_size"] = metadata.get("llama.vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())))
    # Query and key rows are stored with rotary pairs adjacent.
    return config | {"model_type": kind, "rope_traditional": True}


def _hub_name(stored: str) -> str:
    match = NAME.fullmatch(stored)
    if match is None or match[2] not in MODULES:
        return stored
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{MODULES[match[2]]}.{match[3]}"


def _with_format(name: str, entry: TensorEntry) -> str:
    """The name, ending in the format of its blocks if there are any."""
    return name if entry.type.name in PLAIN else f"{name.removesuffix('.weight')}.{entry.type.name.lower()}"
