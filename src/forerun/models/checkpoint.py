"""The files of a checkpoint, their tensors and names. Reads headers; values are read when used.

Knows Hugging Face and MLX folders; knows no family.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from forerun.errors import ModelError, UnsupportedError
from forerun.models.names import canonical, unused

INDEX = "model.safetensors.index.json"
# Where converters put the MTP head when they leave it out of the model's own files.
MTP_FILES = ("mtp.safetensors", "model-mtp.safetensors", "mtp/weights.safetensors", "mtp/model.safetensors")

NUMBERED = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """config: all of config.json. tensors: by canonical name, lazy. dropped: number of tensors that no family reads, by heading.

    has_separate_head: the MTP head comes from its own file. origin: path, for messages.
    """

    origin: str
    config: Mapping[str, Any]
    tensors: dict[str, mx.array]
    dropped: Mapping[str, int]
    has_separate_head: bool

    @classmethod
    def of(cls, origin: str, config: Mapping[str, Any], tensors: Iterable[tuple[str, mx.array]], *, has_separate_head: bool) -> Checkpoint:
        """A checkpoint of tensors under hub or MLX names. Raises ModelError if two have the same canonical name."""
        used: dict[str, mx.array] = {}
        dropped = Counter[str]()
        for stored, tensor in tensors:
            name = canonical(stored)
            if heading := unused(stored):
                dropped[heading] += 1
            elif name in used:
                raise ModelError(f"{origin}: two tensors are {name}", hint="the same weights are in two files, or under two names")
            else:
                used[name] = tensor
        return cls(origin, config, _joined(used), dropped, has_separate_head)


@dataclass(frozen=True, slots=True)
class Folder:
    """The model's files in a folder. mtp_file: the separate file of the MTP head, if there is one."""

    path: Path
    config: Mapping[str, Any]
    model_files: tuple[Path, ...]
    mtp_file: Path | None

    @classmethod
    def find(cls, path: Path) -> Folder:
        """Raises ModelError, UnsupportedError (weights packed in a way that MLX cannot read)."""
        config = read_json(path / "config.json")
        _check_packing(config, path)
        mtp_file = _mtp_file(path, config)
        return cls(path, config, tuple(_model_files(path, mtp_file)), mtp_file)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the model."""
        return (self.path / "config.json", *self.model_files, *([] if self.mtp_file is None else [self.mtp_file]))

    def open(self) -> Checkpoint:
        """Its checkpoint. Raises ModelError."""
        tensors = [pair for file in self.model_files for pair in _tensors(file)]
        if self.mtp_file is not None:
            tensors += [(of_head(name), tensor) for name, tensor in _tensors(self.mtp_file)]
        return Checkpoint.of(str(self.path), self.config, tensors, has_separate_head=self.mtp_file is not None)


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


def _model_files(folder: Path, mtp_file: Path | None) -> list[Path]:
    """All shards that the index names; without an index all .safetensors files of the folder."""
    index = folder / INDEX
    if not index.exists():
        files = [file for file in sorted(folder.glob("*.safetensors")) if file != mtp_file]
        if not files:
            hint = "give a folder with config.json, tokenizer.json and safetensors weights"
            raise ModelError(f"{folder} has no .safetensors file", hint=hint)
        return files
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict):
        raise ModelError(f"{index} has no weight_map")
    files = sorted({folder / str(name) for name in named.values()} - {mtp_file})
    if missing := [file.name for file in files if not file.is_file() or file.parent != folder]:
        raise ModelError(f"{folder} lacks files that {INDEX} names: {', '.join(missing)}", hint="fetch it again")
    return files


def _mtp_file(folder: Path, config: Mapping[str, Any]) -> Path | None:
    declared = (config.get("mlx_lm_extra_tensors") or {}).get("mtp_file")
    names = [declared] if declared else MTP_FILES
    files = [folder / str(name) for name in names if (folder / str(name)).is_file()]
    if declared and not files:
        raise ModelError(f"{folder} lacks the file of its MTP head, {declared}", hint="config.json names it in mlx_lm_extra_tensors")
    if len(files) > 1:
        raise ModelError(f"{folder} has two MTP heads: {', '.join(file.name for file in files)}", hint="keep one of the files")
    return files[0] if files else None


def of_head(stored: str) -> str:
    """The canonical name of a tensor in a file of the MTP head, where the prefix is optional."""
    name = canonical(stored)
    return name if name.startswith("mtp.") else f"mtp.{name}"


def _tensors(file: Path) -> Iterable[tuple[str, mx.array]]:
    try:
        loaded = mx.load(str(file))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", hint="the file is damaged or truncated; fetch it again") from error
    assert isinstance(loaded, dict)
    return loaded.items()


def _joined(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Numbered experts (`experts.7.up_proj.weight`) as one tensor [experts, ...] per module, the usual form."""
    numbered: dict[str, dict[int, mx.array]] = defaultdict(dict)
    for name, tensor in tensors.items():
        if match := NUMBERED.fullmatch(name):
            numbered[f"{match[1]}.{match[3]}"][int(match[2])] = tensor
    whole = {name: parts for name, parts in numbered.items() if _can_be_stacked(parts)}
    joined = {name: mx.stack([parts[i] for i in range(len(parts))]) for name, parts in whole.items()}
    return {name: tensor for name, tensor in tensors.items() if _module(name) not in whole} | joined


def _can_be_stacked(parts: Mapping[int, mx.array]) -> bool:
    return set(parts) == set(range(len(parts))) and len({(p.shape, p.dtype) for p in parts.values()}) == 1


def _module(name: str) -> str:
    match = NUMBERED.fullmatch(name)
    return f"{match[1]}.{match[3]}" if match else ""


def _check_packing(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse weights of other libraries' quantisers: their tensors would be misread or missing."""
    packing = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config") or {}
    method = packing.get("quant_method")
    if method is not None and "quantization" not in config:
        hint = "MLX quantisation is read: affine, mxfp4, mxfp8, nvfp4; take the unquantised checkpoint or one for MLX"
        raise UnsupportedError(f"{folder}: weights quantised by {method} cannot be read", hint=hint)
