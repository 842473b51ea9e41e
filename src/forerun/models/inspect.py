"""The modules of a checkpoint and their formats, from config.json and the headers of its files, or a GGUF file's: reads no weights.

Knows names of tensors; nothing of a running model.
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
from forerun.models.checkpoint import Folder, of_head
from forerun.models.gguf import GgufFile
from forerun.models.headers import DTYPE_BITS, TensorHeader, read_headers
from forerun.models.names import canonical, unused
from forerun.models.weights import declared
from forerun.text.gguf import checkpoint_at, is_gguf

NOT_READ = "not read"
# By canonical name; the first match wins.
KINDS = (
    ("mtp", r"mtp\."),
    ("embedding", r".*embed_tokens$"),
    ("head", r"lm_head$"),
    ("router", r".*\.mlp\.(gate|shared_expert_gate)$"),
    ("shared expert", r".*\.shared_expert\."),
    ("experts", r".*\.experts\."),
    ("mlp", r".*\.mlp\.\w+_proj$"),
    ("attention", r".*\.self_attn\.[qkvo]_proj$"),
    ("delta net in", r".*\.linear_attn\.in_proj_\w+$"),
    ("delta net out", r".*\.linear_attn\.out_proj$"),
    ("other", r""),
)
_LEAF = re.compile(r"\.(weight|scales|biases)$")


@dataclass(frozen=True, slots=True)
class Module:
    """A matrix or another parameter, stored as one or more tensors. format: such as "4-bit affine, groups of 32", "BF16", "Q4_K"."""

    name: str
    kind: str
    format: str
    num_params: int
    num_bytes: int

    @property
    def is_quantised(self) -> bool:
        return self.format not in DTYPE_BITS


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """All modules of one kind. formats: parameters stored in each format."""

    name: str
    num_modules: int
    num_params: int
    num_bytes: int
    formats: dict[str, int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Configuration and modules. mtp: "none", or location and format of the draft head."""

    path: Path
    config: Mapping[str, Any]
    modules: tuple[Module, ...]
    mtp: str

    @property
    def family(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of the configuration."""
        nested = self.config.get("text_config", self.config)
        return nested if isinstance(nested, Mapping) else {}

    @property
    def served(self) -> tuple[Module, ...]:
        """The modules that are loaded: no vision tower, and no head that is tied to the embedding."""
        is_tied = self.text.get("tie_word_embeddings", self.config.get("tie_word_embeddings", False))
        return tuple(m for m in self.modules if m.kind != NOT_READ and not (is_tied and m.kind == "head"))

    @property
    def num_params(self) -> int:
        return sum(m.num_params for m in self.served)

    @property
    def num_active_params(self) -> int:
        """Parameters used per token, without the draft head; of the experts only those that the router chooses."""
        target = sum(m.num_params for m in self.served if m.kind not in ("mtp", "experts"))
        return target + int(sum(m.num_params for m in self.served if m.kind == "experts") * self._chosen_frac)

    @property
    def num_bytes(self) -> int:
        return sum(m.num_bytes for m in self.served)

    @property
    def _chosen_frac(self) -> float:
        return float(self.text.get("num_experts_per_tok", 1)) / float(self.text.get("num_experts", 1))

    def kinds(self) -> Iterator[ModuleKind]:
        """The modules by kind, in the order of KINDS, then those that are not read."""
        for name in (*(name for name, _ in KINDS), NOT_READ):
            if of_kind := [m for m in self.modules if m.kind == name]:
                formats: Counter[str] = Counter()
                for module in of_kind:
                    formats[module.format] += module.num_params
                sizes = sum(m.num_params for m in of_kind), sum(m.num_bytes for m in of_kind)
                yield ModuleKind(name, len(of_kind), *sizes, dict(formats.most_common()))


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder or a GGUF file. Raises ModelError if there is none or a file is truncated, UnsupportedError for unknown
    packing or another architecture of a GGUF file.
    """
    path = checkpoint_at(path)
    return _of_file(GgufFile.find(path)) if is_gguf(path) else _of_folder(Folder.find(path))


def _of_file(file: GgufFile) -> Checkpoint:
    modules = []
    for stored, entry in file.tensors:
        name = _LEAF.sub("", stored)
        modules.append(Module(name, _kind(name), entry.type.name, prod(entry.shape), entry.stop - entry.start))
    return Checkpoint(file.path, file.config, tuple(modules), "none")


def _of_folder(folder: Folder) -> Checkpoint:
    parts: dict[str, dict[str, TensorHeader]] = defaultdict(dict)
    for file in folder.files[1:]:
        for stored, header in read_headers(file).items():
            name = stored if unused(stored) else of_head(stored) if file == folder.mtp_file else canonical(stored)
            leaf = _LEAF.search(name)
            parts[name[: leaf.start()] if leaf else name][leaf[1] if leaf else "weight"] = header
    by_path = {canonical(name): how for name, how in declared(folder.config).items() if isinstance(how, dict)}
    modules = tuple(_module(name, part, by_path.get(name, declared(folder.config))) for name, part in parts.items())
    return Checkpoint(folder.path, folder.config, modules, _mtp(folder, modules))


def _kind(name: str) -> str:
    """The kind of the module of this canonical name."""
    return NOT_READ if unused(f"{name}.weight") or unused(name) else next(kind for kind, pattern in KINDS if re.match(pattern, name))


def _module(name: str, part: Mapping[str, TensorHeader], how: Mapping[str, Any]) -> Module:
    num_bytes = sum(header.num_bytes for header in part.values())
    if "scales" not in part:
        weight = next(iter(part.values()))
        return Module(name, _kind(name), weight.dtype, prod(weight.shape), num_bytes)
    if not how.get("group_size"):
        raise ModelError(f"config.json does not declare how {name} is quantised", hint="it lacks `quantization` with a group_size")
    columns = part["scales"].shape[-1] * int(how["group_size"])
    bits = part["weight"].shape[-1] * 32 // columns
    format = f"{bits}-bit {how.get('mode', 'affine')}, groups of {how['group_size']}"
    return Module(name, _kind(name), format, prod(part["weight"].shape[:-1]) * columns, num_bytes)


def _mtp(folder: Folder, modules: tuple[Module, ...]) -> str:
    formats = Counter[str]()
    for module in modules:
        formats[module.format] += module.num_params * (module.kind == "mtp")
    location = "among the weights" if folder.mtp_file is None else f"in {folder.mtp_file.relative_to(folder.path)}"
    return f"{location}, {formats.most_common(1)[0][0]}" if formats.total() else "none"
