"""Convert a checkpoint to a folder for MLX with quantised matrices: tensor by tensor and shard by shard, never all in memory.

MLX folders have the names of mlx-lm's modules, gains in norms ("folded"), convolutions [channels, width, 1]. The MTP head goes unchanged
into its own file, which forerun reads and mlx-lm ignores. Knows files and names; recipe.py decides how each matrix is quantised.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import mlx.core as mx

from forerun.errors import ForerunError, ModelError
from forerun.kernels.buffers import release_buffers
from forerun.kernels.numerics import FAST
from forerun.kernels.quantised import Scheme, quantise
from forerun.machine import free_bytes
from forerun.models import norms
from forerun.models.checkpoint import INDEX, Checkpoint, Folder
from forerun.models.families import kind_of
from forerun.models.load import load
from forerun.models.recipe import MTP, Recipe
from forerun.models.weights import ReadOptions, Weights

SHARD_BYTES = 1 << 30
MTP_FILE = "mtp.safetensors"
# Text files that mlx-lm and forerun read.
TEXTS = ("*.json", "*.jinja", "*.txt", "*.model")
Progress = Callable[[str, float], None]


@dataclass(slots=True)
class ConversionResult:
    """Contents of the new folder: file of each tensor, total bytes and parameters, scheme of each quantised module."""

    files: dict[str, str] = field(default_factory=dict)
    num_bytes: int = 0
    num_params: int = 0
    quantised: dict[str, Scheme] = field(default_factory=dict)


def convert(source: Path, target: Path, recipe: Recipe, progress: Progress, *, shard_bytes: int = SHARD_BYTES) -> ConversionResult:
    """Write `target`, which must not exist: complete and loaded once as a check, or not at all.

    Holds about one shard and the largest matrix in memory. Raises ConfigError, ModelError, ForerunError (disk too full).
    """
    folder = Folder.find(source)
    checkpoint = _opened(folder)
    recipe.check(_paths(checkpoint))
    _check_disk(checkpoint, recipe, target)
    with _temporary(target) as new:
        result = write(checkpoint, new, recipe, progress, shard_bytes)
        _copy_texts(source, new)
        _sync(new)
        load(new, FAST, "bfloat16", progress)
    return result


def write(checkpoint: Checkpoint, folder: Path, recipe: Recipe, progress: Progress, shard_bytes: int) -> ConversionResult:
    """Write the weights, their index and config.json to `folder`."""
    prefix = "language_model." if "qwen3_5" in str(checkpoint.config.get("model_type")) else ""
    conventions = _conventions(checkpoint)
    head = {name: checkpoint.tensors.pop(name) for name in list(checkpoint.tensors) if name.startswith(MTP)}
    shards = _Shards(folder, shard_bytes)
    total = len(checkpoint.tensors)
    for done, name in enumerate(list(checkpoint.tensors)):
        progress("quantising", done / total)
        for path, tensor in _as_mlx(name, checkpoint.tensors.pop(name), is_zero_centred=conventions.get("target") == "zero-centred"):
            shards.add(prefix, path, tensor, recipe)
            shards.spill()
    shards.close()
    for name in list(head):
        shards.add("", name, head.pop(name), recipe)
    shards.close_head()
    _write_config(checkpoint.config, folder, recipe, shards.result, conventions)
    return shards.result


class _Shards:
    """Collects tensors and writes a file whenever they fill one."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self.result = ConversionResult()
        self._folder, self._limit, self._open, self._num = folder, shard_bytes, dict[str, mx.array](), 0

    def add(self, prefix: str, name: str, tensor: mx.array, recipe: Recipe) -> None:
        """Quantise the tensor, or cast it, and add it to the current file."""
        path, arrays = _path(name), {prefix + name: _cast(name, tensor)}
        scheme = recipe.scheme(path, tensor.shape[-1]) if path else None
        if scheme:
            packed = quantise(arrays.popitem()[1], scheme)
            parts = {"weight": packed.integers, "scales": packed.scales, "biases": packed.biases}
            arrays = {f"{prefix}{path}.{part}": array for part, array in parts.items() if array is not None}
            self.result.quantised[prefix + path] = scheme
        self.result.num_params += tensor.size
        mx.eval(arrays)
        if not mx.isfinite(tensor.sum()).item():
            raise ModelError(f"{name} has values that are not finite", hint="the checkpoint is damaged; fetch it again")
        self._open |= arrays

    def spill(self) -> None:
        """Write a file if it is full."""
        if sum(array.nbytes for array in self._open.values()) >= self._limit:
            self._flush(f"model-{self._num + 1:05d}.safetensors")

    def close(self) -> None:
        """Write the rest, the final file names (with the number of files) and the index."""
        if self._open:
            self._flush(f"model-{self._num + 1:05d}.safetensors")
        names = {f"model-{i:05d}.safetensors": f"model-{i:05d}-of-{self._num:05d}.safetensors" for i in range(1, self._num + 1)}
        for old, new in names.items():
            (self._folder / old).rename(self._folder / new)
        self.result.files = {tensor: names[file] for tensor, file in self.result.files.items()}
        index = {"metadata": {"total_size": self.result.num_bytes, "total_parameters": self.result.num_params}}
        (self._folder / INDEX).write_text(json.dumps(index | {"weight_map": dict(sorted(self.result.files.items()))}, indent=1))

    def close_head(self) -> None:
        """Write the tensors added since `close`, if any, to the file of the MTP head."""
        if self._open:
            self._flush(MTP_FILE)

    def _flush(self, file: str) -> None:
        mx.save_safetensors(str(self._folder / file), self._open, metadata={"format": "mlx"})
        self.result.files |= dict.fromkeys(self._open, file)
        self.result.num_bytes += sum(array.nbytes for array in self._open.values())
        self._num += 1
        self._open.clear()
        release_buffers()


def _opened(folder: Folder) -> Checkpoint:
    kind_of(folder.config.get("model_type"), folder.path)
    checkpoint = folder.open()
    if packed := next((name for name in checkpoint.tensors if name.endswith(".scales")), ""):
        raise ModelError(f"{folder.path} is quantised already ({packed})", hint="convert the unquantised checkpoint")
    text = folder.config.get("text_config", folder.config)
    if text.get("tie_word_embeddings", folder.config.get("tie_word_embeddings", False)):
        checkpoint.tensors.pop("lm_head.weight", None)
    return checkpoint


def _path(name: str) -> str:
    """The module of a matrix, "" for other tensors: norms, vectors, convolutions."""
    is_matrix = name.endswith(".weight") and not norms.NORM.search(name) and not name.endswith("conv1d.weight")
    return name.removesuffix(".weight") if is_matrix else ""


def _paths(checkpoint: Checkpoint) -> set[str]:
    """The modules of all matrices, by their MLX names."""
    target = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(MTP)}
    as_mlx = {path for name, tensor in target.items() for path, _ in _as_mlx(name, tensor, is_zero_centred=False)}
    return {path for path in map(_path, as_mlx | (checkpoint.tensors.keys() - target.keys())) if path}


def _as_mlx(name: str, tensor: mx.array, *, is_zero_centred: bool) -> Iterator[tuple[str, mx.array]]:
    """The tensor in MLX's form and name; a fused one as the two tensors of MLX's modules."""
    if name.endswith(".conv1d.weight") and tensor.shape[-1] != 1:
        yield name, tensor.moveaxis(2, 1)
    elif norms.NORM.search(name) and is_zero_centred and not name.endswith("linear_attn.norm.weight"):
        yield name, tensor.astype(mx.float32) + 1.0
    elif ".experts.gate_up_proj." in name:
        for part, half in zip(("gate", "up"), mx.split(tensor, 2, axis=-2), strict=True):
            yield name.replace(".experts.gate_up_proj.", f".switch_mlp.{part}_proj."), half
    else:
        yield name.replace(".experts.", ".switch_mlp."), tensor


def _cast(name: str, tensor: mx.array) -> mx.array:
    """In bfloat16, except decay rates of DeltaNet layers and the MTP head."""
    return tensor if name.endswith("A_log") or name.startswith(MTP) else tensor.astype(mx.bfloat16)


def _conventions(checkpoint: Checkpoint) -> dict[str, str]:
    """The norm conventions of target and MTP head in the source; empty for a family that has only one."""
    conv = next((tensor for name, tensor in checkpoint.tensors.items() if name.endswith("conv1d.weight")), None)
    if conv is None:
        return {}
    target = norms.of_target(checkpoint.config, conv)
    conventions = {"target": target}
    head = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(MTP)}
    if head:
        alone = Checkpoint(checkpoint.origin, checkpoint.config, head, {}, checkpoint.has_separate_head)
        conventions["mtp"] = norms.of_mtp(Weights(alone, ReadOptions("float32", False, lambda name, tensor: None)), target)
    return {part: "zero-centred" if convention.is_zero_centred else "folded" for part, convention in conventions.items()}


def _write_config(
    config: Mapping[str, Any], folder: Path, recipe: Recipe, result: ConversionResult, conventions: Mapping[str, str]
) -> None:
    fields = {key: value for key, value in config.items() if key != "mlx_lm_extra_tensors"}
    if result.quantised:
        exceptions = {path: scheme._asdict() for path, scheme in result.quantised.items() if scheme != recipe.default}
        fields["quantization"] = fields["quantization_config"] = recipe.default._asdict() | exceptions
    if conventions:
        fields[norms.DECLARED] = dict(conventions) | {"target": "folded"}
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")


def _check_disk(checkpoint: Checkpoint, recipe: Recipe, target: Path) -> None:
    needed = sum(_planned_bytes(name, tensor, recipe) for name, tensor in checkpoint.tensors.items())
    free = free_bytes(target)
    if needed > free:
        raise ForerunError(f"{target} would take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free", hint="free some space")


def _planned_bytes(name: str, tensor: mx.array, recipe: Recipe) -> int:
    path = _path(name)
    scheme = recipe.scheme(path, tensor.shape[-1]) if path else None
    return tensor.nbytes if scheme is None else tensor.size * scheme.bits // 8 + tensor.size // scheme.group_size * 4


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A new folder that is renamed to `target` on success and removed on failure."""
    if target.exists():
        raise ForerunError(f"{target} exists", hint="name a folder that does not exist")
    new = target.absolute().with_name(f".{target.name}.{uuid4().hex}")
    new.mkdir(parents=True)
    try:
        yield new
        new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _copy_texts(source: Path, target: Path) -> None:
    for path in (path for pattern in TEXTS for path in source.glob(pattern)):
        if path.name not in ("config.json", INDEX):
            shutil.copyfile(path, target / path.name)


def _sync(folder: Path) -> None:
    """Flush everything to the disk, before the folder gets its name."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
