"""From a checkpoint to a Family and its digest. Knows nothing of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

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

    mtp: how the draft head is to be named in an Identity. notes: what was decided or left out while reading, for people.
    """

    family: Family
    config: Mapping[str, Any]
    digest: str
    mtp: str
    notes: tuple[str, ...]


def load(folder: Path, numerics: Numerics, dtype: str, progress: Callable[[str, float], None]) -> LoadedModel:
    """The model in `folder`, or in that GGUF file, weights in `dtype`. Call on the thread that will run it.

    Quantised matrices are dequantised on a CPU, which multiplies them slowly, if all weights then take at most half of its memory.
    Raises ModelError, UnsupportedError.
    """
    found = GgufFile.find(folder) if is_gguf(folder) else Folder.find(folder)
    kind = kind_of(found.config.get("model_type"), folder)
    checkpoint, known, digest = found.open(), remembered(signature(found.files)), WeightsDigest()
    seen = _seen(checkpoint, None if known else digest, progress)
    reading = ReadOptions(dtype, _dense_bytes(checkpoint, dtype) <= dense_limit_bytes(), seen)
    weights = Weights(checkpoint, reading)
    family = kind.build(weights, numerics)
    weights.done()
    mx.clear_cache()
    if not known:
        known = digest.hexdigest(found.config)
        remember(found.files, known)
    mtp = "none" if not family.spec.draft_layers else f"mtp{len(family.spec.draft_layers)}"
    return LoadedModel(family, found.config, known, mtp, _notes(checkpoint, weights, reading))


def dense_limit_bytes() -> int:
    """How large weights may become by dequantising them: half of the memory on a CPU; nothing on a GPU, which is fast without."""
    return memory_bytes() // 2 if mx.default_device() == mx.cpu else 0


def _seen(checkpoint: Checkpoint, digest: WeightsDigest | None, progress: Callable[[str, float], None]) -> Callable[[str, mx.array], None]:
    """What is called with every tensor that is read: tells how far it is, and digests it unless the digest is known."""
    total, done = sum(tensor.nbytes for tensor in checkpoint.tensors.values()) or 1, 0

    def seen(name: str, tensor: mx.array) -> None:
        nonlocal done
        done += tensor.nbytes
        progress("reading weights", done / total)
        if digest is not None:
            digest.add(name, tensor)

    return seen


def _dense_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """What the weights take when all matrices are plain."""
    tensors, default = checkpoint.tensors, declared(checkpoint.config)
    by_path = {canonical(path): how for path, how in default.items() if isinstance(how, dict)}
    total = 0
    for name, tensor in tensors.items():
        path, _, part = name.rpartition(".")
        if part == "scales":
            total += tensor.size * int(by_path.get(path, default).get("group_size", 64))
        elif f"{path}.scales" not in tensors:
            total += tensor.size
    return total * int(getattr(mx, dtype).size)


def _notes(checkpoint: Checkpoint, weights: Weights, reading: ReadOptions) -> tuple[str, ...]:
    notes = [*weights.notes]
    if schemes := Counter(map(str, weights.schemes.values())):
        how = f"dequantised to {reading.dtype}" if reading.is_dense else "used as they are"
        notes.append(f"quantised matrices {how}: " + ", ".join(f"{count} of {scheme}" for scheme, count in schemes.most_common()))
    notes += [f"not read: {count} tensors {heading}" for heading, count in checkpoint.dropped.items()]
    return tuple(notes)
