"""From a checkpoint folder to a Family and its digest. Knows files and names of families; nothing of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import xxhash

from forerun.errors import ModelError
from forerun.kernels.numerics import Numerics
from forerun.models.base import Family
from forerun.models.qwen3_5 import Qwen35

DEMO_MODEL = Path(__file__).parent.parent / "data" / "demo-model"
FAMILIES: dict[str, type[Qwen35]] = {"qwen3_5": Qwen35, "qwen3_5_text": Qwen35}
_READ_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory. digest: hex, of the weights as stored and of the configuration.

    mtp: how the draft head is to be named in an Identity."""

    family: Family
    config: Mapping[str, Any]
    digest: str
    mtp: str


def load(folder: Path, numerics: Numerics, dtype: str, progress: Callable[[str, float], None]) -> Loaded:
    """The model in `folder`, weights in `dtype`. Call on the thread that will run it. Raises ModelError."""
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ModelError(f"{folder}: model_type {kind!r} is not supported", hint=f"supported: {', '.join(sorted(FAMILIES))}")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder} has no .safetensors file", hint="give a folder with config.json, tokenizer.json and safetensors weights"
        )
    tensors: dict[str, mx.array] = {}
    for i, file in enumerate(files):
        progress("reading weights", i / len(files))
        tensors |= _tensors(file)
    family = FAMILIES[kind](config, tensors, numerics, dtype, str(folder))
    digest = _digest([folder / "config.json", *files], progress)
    mtp = "none" if not family.spec.draft_layers else f"mtp{len(family.spec.draft_layers)}"
    return Loaded(family, config, digest, mtp)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist", hint="give a folder with config.json, tokenizer.json and safetensors weights") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def _tensors(file: Path) -> dict[str, mx.array]:
    try:
        loaded = mx.load(str(file))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", hint="the file is damaged or truncated; fetch it again") from error
    assert isinstance(loaded, dict)
    return loaded


def _digest(files: list[Path], progress: Callable[[str, float], None]) -> str:
    """xxh3-128 over names and contents of these files."""
    total, done, digest = sum(f.stat().st_size for f in files), 0, xxhash.xxh3_128()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            while block := stream.read(_READ_BYTES):
                digest.update(block)
                done += len(block)
                progress("checking weights", done / total)
    return digest.hexdigest()
