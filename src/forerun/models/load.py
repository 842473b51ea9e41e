"""From a checkpoint to a Family and its digest. Knows nothing of requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from forerun.kernels.blocks import FORMATS
from forerun.kernels.buffers import release_buffers
from forerun.kernels.numerics import Numerics
from forerun.machine import memory_bytes
from forerun.models.base import Family
from forerun.models.checkpoint import Checkpoint, Folder
from forerun.models.digest import WeightsDigest, remember, remembered, signature
from forerun.models.families import kind_of
from forerun.models.gguf import GgufFile
from forerun.models.names import canonical
from forerun.models.weights import ReadOptions, Weights, declared
from forerun.text.gguf import is_gguf

DEMO_MODEL = Path(__file__).parent.parent / "data" / "demo-model"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. digest: hex, of the weights as stored and of the configuration.

    mtp: the draft head's name in an Identity. notes: decisions made and tensors skipped on load, for the user.
    """

    family: Family
    config: Mapping[str, Any]
    digest: str
    mtp: str
    notes: tuple[str, ...]


def load(folder: Path, numerics: Numerics, dtype: str, progress: Callable[[str, float], None]) -> LoadedModel:
    """The model in `folder` (or a GGUF file), weights in `dtype`. Call on the thread that will run it.

    On a CPU quantised matrices that no kernel takes are dequantised if all weights then take at most half the memory, since MLX multiplies
    them slowly. Raises ModelError, UnsupportedError.
    """
    source = GgufFile.find(folder) if is_gguf(folder) else Folder.find(folder)
    kind = kind_of(source.config.get("model_type"), folder)
    checkpoint, cached, digest = source.open(), remembered(signature(source.files)), WeightsDigest()
    on_tensor = _observer(checkpoint, None if cached else digest, progress)
    options = ReadOptions(dtype, _dense_bytes(checkpoint, dtype) <= dense_limit_bytes(), on_tensor)
    weights = Weights(checkpoint, options)
    family = kind.build(weights, numerics)
    weights.done()
    release_buffers()
    if not cached:
        cached = digest.hexdigest(source.config)
        remember(source.files, cached)
    mtp = "none" if not family.spec.draft_layers else f"mtp{len(family.spec.draft_layers)}"
    return LoadedModel(family, source.config, cached, mtp, _notes(checkpoint, weights, options))


def dense_limit_bytes() -> int:
    """Limit for dequantised weights: half of the memory on a CPU; 0 on a GPU, where quantised products are fast."""
    return memory_bytes() // 2 if mx.default_device() == mx.cpu else 0


def _observer(
    checkpoint: Checkpoint, digest: WeightsDigest | None, progress: Callable[[str, float], None]
) -> Callable[[str, mx.array], None]:
    """A callback for every tensor read: reports progress, and adds the tensor to `digest`, if any."""
    total, done = sum(tensor.nbytes for tensor in checkpoint.tensors.values()) or 1, 0

    def observe(name: str, tensor: mx.array) -> None:
        nonlocal done
        done += tensor.nbytes
        progress("reading weights", done / total)
        if digest is not None:
            digest.add(name, tensor)

    return observe


def _dense_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """Bytes of the weights with all matrices dequantised."""
    tensors, default = checkpoint.tensors, declared(checkpoint.config)
    by_path = {canonical(path): how for path, how in default.items() if isinstance(how, dict)}
    total = 0
    for name, tensor in tensors.items():
        path, _, part = name.rpartition(".")
        if part == "scales":
            total += tensor.size * int(by_path.get(path, default).get("group_size", 64))
        elif part in FORMATS:
            total += tensor.size // FORMATS[part].num_bytes * FORMATS[part].num_weights
        elif f"{path}.scales" not in tensors:
            total += tensor.size
    return total * int(getattr(mx, dtype).size)


def _notes(checkpoint: Checkpoint, weights: Weights, options: ReadOptions) -> tuple[str, ...]:
    notes = [*weights.notes]
    for how, numbers in (("used as they are", weights.as_stored), (f"dequantised to {options.dtype}", weights.dequantised)):
        if numbers:
            notes.append(f"quantised matrices {how}: " + ", ".join(f"{count} of {name}" for name, count in numbers.most_common()))
    notes += [f"not read: {count} tensors {heading}" for heading, count in checkpoint.dropped.items()]
    return tuple(notes)
