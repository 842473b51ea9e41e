"""A checkpoint of random weights on disk, of any shape, that a server serves; the bundled model's template, its tokenizer made larger."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from forerun.models.load import DEMO_MODEL
from on_gpu.shapes import tensors


def write(folder: Path, config: Mapping[str, Any]) -> int:
    """Write it; returns the number of its parameters."""
    folder.mkdir()
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config["text_config"]["vocab_size"])))
    (folder / "config.json").write_text(json.dumps(config))
    made = tensors(config)
    mx.save_safetensors(str(folder / "model.safetensors"), made)
    parameters = sum(tensor.size for tensor in made.values())
    made.clear()
    mx.clear_cache()
    time.sleep(2.5)  # the digest of a recently written file is not cached
    return parameters


def tokenizer(vocab: int) -> dict[str, Any]:
    """The bundled one, extended by a text for every token that random weights may choose; encoding is unchanged."""
    found: dict[str, Any] = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    vocabulary = found["model"]["vocab"]
    vocabulary |= {token["content"]: token["id"] for token in found["added_tokens"]}  # otherwise the library assigns them the next ids
    vocabulary |= {f"Ġw{token}": token for token in range(len(vocabulary), vocab)}
    return found
