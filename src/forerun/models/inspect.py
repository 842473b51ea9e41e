"""What a checkpoint is made of and what it would cost here, told from config.json and the headers of its files: no weight is read.

Knows names of tensors and the families' configurations; nothing of a running model. The machine is described by the caller.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from forerun.errors import ModelError
from forerun.models.headers import TensorHeader, read_headers
from forerun.text.files import read_object

# First match wins. Names as on the hub and as MLX writes them.
KINDS = (
    ("vision", r"visual\.|vision_tower\."),
    ("mtp", r"(^|\.)mtp\."),
    ("embedding", r"embed_tokens$"),
    ("head", r"lm_head$"),
    ("router", r"\.mlp\.(gate|shared_expert_gate)$"),
    ("shared expert", r"\.shared_expert\."),
    ("experts", r"\.(experts|switch_mlp)\."),
    ("mlp", r"\.mlp\.\w+_proj$"),
    ("attention", r"\.self_attn\.[qkvo]_proj$"),
    ("delta net in", r"\.linear_attn\.in_proj_\w+$"),
    ("delta net out", r"\.linear_attn\.out_proj$"),
    ("other", r""),
)
MTP_FILES = ("mtp.safetensors", "mtp/weights.safetensors", "model-mtp.safetensors")
_LEAVES = re.compile(r"\.(weight|scales|biases|global_scale)$")


@dataclass(frozen=True, slots=True)
class Module:
    """A matrix or another parameter of the model, however many tensors store it. format: as in "4-bit affine, groups of 32" or "BF16"."""

    name: str
    kind: str
    format: str
    num_params: int
    num_bytes: int

    @property
    def is_quantised(self) -> bool:
        return "-bit" in self.format


@dataclass(frozen=True, slots=True)
class Kind:
    """All modules of one kind. formats: parameters stored in each format."""

    name: str
    num_modules: int
    num_params: int
    num_bytes: int
    formats: dict[str, int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder's configuration and modules. mtp: "none", or where the draft head is and how it is stored."""

    folder: Path
    config: Mapping[str, Any]
    modules: tuple[Module, ...]
    mtp: str

    @property
    def family(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def text(self) -> Mapping[str, Any]:
        """The part of the configuration that describes the language model."""
        nested = self.config.get("text_config", self.config)
        return nested if isinstance(nested, Mapping) else {}

    @property
    def served(self) -> tuple[Module, ...]:
        """What is loaded: all but a vision tower."""
        return tuple(m for m in self.modules if m.kind != "vision")

    @property
    def num_params(self) -> int:
        return sum(m.num_params for m in self.served)

    @property
    def num_active_params(self) -> int:
        """Parameters that take part in one token, without the draft head: of the experts only those that the router chooses."""
        trunk = sum(m.num_params for m in self.served if m.kind not in ("mtp", "experts"))
        return trunk + int(sum(m.num_params for m in self.served if m.kind == "experts") * self._chosen_frac)

    @property
    def num_bytes(self) -> int:
        return sum(m.num_bytes for m in self.served)

    @property
    def _chosen_frac(self) -> float:
        return float(self.text.get("num_experts_per_tok", 1)) / float(self.text.get("num_experts", 1))

    def kinds(self) -> Iterator[Kind]:
        """The modules by kind, in the order of KINDS."""
        for name, _ in KINDS:
            if of_kind := [m for m in self.modules if m.kind == name]:
                formats: Counter[str] = Counter()
                for module in of_kind:
                    formats[module.format] += module.num_params
                sizes = sum(m.num_params for m in of_kind), sum(m.num_bytes for m in of_kind)
                yield Kind(name, len(of_kind), *sizes, dict(formats.most_common()))


def read_checkpoint(folder: Path) -> Checkpoint:
    """What is in the folder. Raises ModelError if there is no checkpoint, or a file of it is cut off."""
    config = read_object(folder / "config.json")
    if not config:
        raise ModelError(f"{folder} has no config.json", hint="give a model's folder, or the name of one that was pulled")
    files = weight_files(folder, config)
    headers = {file: read_headers(file) for file in files}
    modules = tuple(_modules(config, {name: header for found in headers.values() for name, header in found.items()}))
    return Checkpoint(folder, config, modules, _mtp(headers, modules))


def weight_files(folder: Path, config: Mapping[str, Any]) -> list[Path]:
    """The safetensors files of a checkpoint, a draft head's own file among them. Raises ModelError if a file of the index is missing."""
    index = read_object(folder / "model.safetensors.index.json").get("weight_map", {})
    missing = [name for name in sorted(set(index.values())) if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder} lacks {', '.join(missing)}", hint="its download was not finished: `forerun models pull` goes on")
    named = config.get("mlx_lm_extra_tensors", {}).get("mtp_file")
    beside = [folder / name for name in (*MTP_FILES, *([named] if named else []))]
    files = sorted({*folder.glob("*.safetensors"), *(path for path in beside if path.is_file())})
    if not files:
        raise ModelError(
            f"{folder} has no .safetensors file", hint="give a folder with config.json, tokenizer.json and safetensors weights"
        )
    return files


def _modules(config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> Iterator[Module]:
    parts: dict[str, dict[str, TensorHeader]] = defaultdict(dict)
    for name, header in tensors.items():
        leaf = _LEAVES.search(name)
        parts[name[: leaf.start()] if leaf else name][leaf[1] if leaf else "weight"] = header
    for name, tensor in parts.items():
        kind = next(kind for kind, pattern in KINDS if re.search(pattern, name))
        num_bytes = sum(header.num_bytes for header in tensor.values())
        yield Module(name, kind, *_format(config, name, tensor), num_bytes)


def _format(config: Mapping[str, Any], name: str, tensor: Mapping[str, TensorHeader]) -> tuple[str, int]:
    """How a module is stored, and how many parameters that stands for."""
    weight = tensor.get("weight") or next(iter(tensor.values()))
    if "scales" not in tensor:
        return weight.dtype, prod(weight.shape)
    given = quantisation(config, name)
    columns = tensor["scales"].shape[-1] * int(given["group_size"])
    bits = weight.shape[-1] * 32 // columns
    return f"{bits}-bit {given.get('mode', 'affine')}, groups of {given['group_size']}", prod(weight.shape[:-1]) * columns


def quantisation(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What config.json says of a quantised module. Raises ModelError if it says nothing."""
    whole = config.get("quantization") or config.get("quantization_config") or {}
    own = whole.get(name)
    found = own if isinstance(own, Mapping) else whole
    if not found.get("group_size"):
        raise ModelError(f"config.json does not say how {name} is quantised", hint="it lacks `quantization` with a group_size")
    return found


def _mtp(headers: Mapping[Path, Mapping[str, TensorHeader]], modules: tuple[Module, ...]) -> str:
    own = [module for module in modules if module.kind == "mtp"]
    if not own:
        return "none"
    names = {module.name for module in own}
    files = {file.name for file, tensors in headers.items() if any(_LEAVES.sub("", name) in names for name in tensors)}
    trunk = {file.name for file, tensors in headers.items() if any("embed_tokens" in name for name in tensors)}
    place = "among the weights" if files & trunk or len(files) > 1 else f"in {files.pop()}"
    formats = Counter[str]()
    for module in own:
        formats[module.format] += module.num_params
    return f"{place}, {formats.most_common(1)[0][0]}"
