"""GGUF files for tests: a writer of the format, a small Llama in any format of weights, the bundled model's vocabulary."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from tests import families
from tests.families import DIM, HIDDEN, LLAMA

from forerun.kernels.blocks import FORMATS, random_blocks
from forerun.models.gguf import MODULES
from forerun.models.load import DEMO_MODEL
from forerun.text.gguf import TYPES

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
NUMBERS = {"uint32": 4, "int32": 5, "float32": 6}
STRING, ARRAY = 8, 9
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
        "tokenizer.ggml.token_type": np.array(kinds, dtype=np.int32),
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in whole["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": np.uint32(ids["<|endoftext|>"]),
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
    numbers: dict[str, Any] = {f"llama.{name}": np.uint32(value) for name, value in fields.items()}
    numbers["llama.attention.layer_norm_rms_epsilon"] = np.float32(LLAMA["rms_norm_eps"])
    numbers["llama.rope.freq_base"] = np.float32(LLAMA["rope_theta"])
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


class Stored(NamedTuple):
    """A tensor as a file holds it. type: a name in TYPES."""

    type: str
    shape: tuple[int, ...]
    data: bytes


def plain(weight: mx.array) -> Stored:
    """float32, float16 or bfloat16."""
    name = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}[weight.dtype]
    return Stored(name, weight.shape, bytes(np.array(mx.contiguous(weight).reshape(-1).view(mx.uint8))))


def in_blocks(format: str, shape: tuple[int, int]) -> Stored:
    """A random matrix, as large as those of `families.tensors`."""
    form, blocks = FORMATS[format], random_blocks(format, *shape)
    scale = 1.5 * shape[1] ** -0.5 / float(form.dequantise(blocks).square().mean().sqrt())
    each = blocks.reshape(-1, form.num_bytes)
    for start in form.halves:
        half = mx.contiguous(each[:, start : start + 2]).view(mx.float16)
        each[:, start : start + 2] = (half * scale).astype(mx.float16).view(mx.uint8)
    return Stored(format.upper(), shape, bytes(np.array(each)))


def dequantised(stored: Stored) -> Stored:
    """The tensor in float32."""
    if stored.type.lower() not in FORMATS:
        return stored
    blocks = mx.array(np.frombuffer(stored.data, np.uint8)).reshape(stored.shape[0], -1)
    return plain(FORMATS[stored.type.lower()].dequantise(blocks))


def llama(**formats: str) -> dict[str, Stored]:
    """The tensors of the small Llama. formats: of matrices, by a part of GGUF's name; q8_0 where rows are no whole blocks."""
    found = {}
    for ours, tensor in families.tensors("llama").items():
        name = their_name(ours)
        format = next((format for part, format in formats.items() if part in name and tensor.ndim == 2), None)
        if format and tensor.shape[1] % FORMATS[format].num_weights:
            format = "q8_0"
        found[name] = in_blocks(format, tensor.shape) if format else plain(turned(ours, tensor))
    return found


def write(file: Path, **changed: Any) -> Path:
    """The small Llama in float32 with the bundled vocabulary in one file; `changed`: metadata by name with . written as __."""
    return save(file, llama(), {name.replace("__", "."): value for name, value in changed.items()})


def save(file: Path, tensors: Mapping[str, Stored], changed: Mapping[str, Any]) -> Path:
    """These tensors with the small Llama's metadata."""
    metadata, places, offset = vocabulary() | architecture() | changed, b"", 0
    alignment = metadata.get("general.alignment", 32)
    for name, stored in tensors.items():
        number = next(number for number, type in TYPES.items() if type.name == stored.type)
        dims = struct.pack(f"<I{len(stored.shape)}Q", len(stored.shape), *reversed(stored.shape))
        places += _string(name) + dims + struct.pack("<IQ", number, offset)
        offset += len(_padded(stored.data, alignment))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(_string(k) + _value(v) for k, v in metadata.items())
    file.write_bytes(_padded(head + places, alignment) + b"".join(_padded(stored.data, alignment) for stored in tensors.values()))
    return file


def _value(value: Any) -> bytes:
    """Metadata with its type."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(_string(each) for each in value)
    number = struct.pack("<I", NUMBERS[value.dtype.name])
    return (
        number + value.tobytes() if value.ndim == 0 else struct.pack("<I", ARRAY) + number + struct.pack("<Q", len(value)) + value.tobytes()
    )


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _padded(data: bytes, alignment: Any) -> bytes:
    return data + bytes(-len(data) % int(alignment or 32))
