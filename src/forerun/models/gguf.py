"""A checkpoint in one GGUF file of llama.cpp: Llama, with weights as MLX loads them.

Matrices in Q4_0, Q4_1 and Q8_0 stay quantised, in MLX's format; MLX (0.32.4) converts other types to float16 or refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from forerun.errors import ModelError, UnsupportedError
from forerun.models.checkpoint import Checkpoint
from forerun.text.gguf import read_metadata

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
NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(\w+)")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The file, and its metadata in the form of config.json."""

    path: Path
    config: Mapping[str, Any]

    @classmethod
    def find(cls, path: Path) -> GgufFile:
        """Raises ModelError, UnsupportedError (another architecture)."""
        return cls(path, _config(read_metadata(path), path))

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def open(self) -> Checkpoint:
        """Its checkpoint, the tensors in memory. Raises ModelError."""
        try:
            loaded = mx.load(str(self.path))
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"{self.path} cannot be read: {error}", hint="kinds that MLX reads: F32, F16, BF16, Q4_0, Q4_1, Q8_0"
            ) from error
        assert isinstance(loaded, dict)
        config = {**self.config, "tie_word_embeddings": "output.weight" not in loaded}
        named = [(_hub_name(name), tensor) for name, tensor in loaded.items()]
        return Checkpoint.of(str(self.path), config, named, has_separate_head=False)


def _config(metadata: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kind = metadata.get("general.architecture")
    if kind != "llama":
        hint = "GGUF files of Llama's architecture are read; take a Hugging Face or MLX folder of this model"
        raise UnsupportedError(f"{path}: architecture {kind!r} cannot be read", hint=hint)
    config = {field: metadata[f"llama.{key}"] for field, key in FIELDS.items() if f"llama.{key}" in metadata}
    scaling = metadata.get("llama.rope.scaling.type", "none")
    config["rope_scaling"] = None if scaling == "none" else {"rope_type": scaling}
    config["vocab_size"] = metadata.get("llama.vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())))
    # Query and key rows are stored with rotary pairs adjacent; quantised matrices have groups of 32.
    return config | {"model_type": kind, "rope_traditional": True, "quantization": {"group_size": 32}}


def _hub_name(stored: str) -> str:
    match = NAME.fullmatch(stored)
    if match is None or match[2] not in MODULES:
        return stored
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{MODULES[match[2]]}.{match[3]}"
