"""The head of a GGUF file: its metadata, and where its tensors lie. Weights are not read.

Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from forerun.errors import ModelError

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MAX_DEPTH = 2
MAX_DIMS = 4


class TensorType(NamedTuple):
    """How weights are stored: num_weights of a row in num_bytes."""

    name: str
    num_weights: int
    num_bytes: int


class TensorEntry(NamedTuple):
    """A tensor [out, in], or with other dimensions, whose bytes are start .. stop of the file."""

    type: TensorType
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape with the bytes of a row instead of its weights where these come in blocks."""
        type, *outer, inner = self.type, *self.shape
        return self.shape if type.num_weights == 1 else (*outer, inner // type.num_weights * type.num_bytes)


class Head(NamedTuple):
    """All metadata, arrays as lists, and all tensors by the file's names."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]


TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    30: TensorType("BF16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
}


def is_gguf(path: Path) -> bool:
    """Whether this is a GGUF file, by its name."""
    return path.suffix == ".gguf" and path.is_file()


def checkpoint_at(path: Path) -> Path:
    """The checkpoint at a path that a user gave: the path itself, or the one GGUF file in a folder without a config.json.

    Raises ModelError if there is none, or if there are several.
    """
    if is_gguf(path) or (path / "config.json").exists():
        return path
    files = sorted(path.glob("*.gguf")) if path.is_dir() else []
    if not files:
        hint = "give a folder with config.json, tokenizer.json and safetensors weights, or a .gguf file"
        raise ModelError(f"{path} is no model: neither a folder with a config.json nor a .gguf file", hint=hint)
    if len(files) > 1:
        raise ModelError(f"{path} holds {len(files)} GGUF files", hint=f"name the one to serve, such as {files[0]}")
    return files[0]


def read_head(path: Path) -> Head:
    """Metadata and tensors. Raises ModelError, also for tensors of types that are not in TYPES or that do not lie in the file."""
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _read(path: Path, changed_ns: int) -> Head:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).head()
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise ModelError(f"{path} cannot be read as GGUF: {error}", hint="the file is damaged or truncated; fetch it again") from error


class _Reader:
    """Reads the head of a file in order. Raises ModelError for types of tensors; ValueError, KeyError, struct.error."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._offset = path, data, 0

    def head(self) -> Head:
        magic, version = self._bytes(4), self._number("I")
        if magic != MAGIC or version not in VERSIONS:
            raise ValueError(f"it begins with {magic!r}, version {version}")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        metadata = {self._string(): self._value(self._number("I"), MAX_DEPTH) for _ in range(num_values)}
        entries = [self._entry() for _ in range(num_tensors)]
        return Head(metadata, _placed(entries, _first(self._offset, metadata.get("general.alignment", 32)), len(self._data)))

    def _entry(self) -> tuple[str, TensorEntry]:
        """A tensor by name, its bytes counted from the first tensor's."""
        name, num_dims = self._string(), self._number("I")
        if not 1 <= num_dims <= MAX_DIMS:
            raise ValueError(f"{name} has {num_dims} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(num_dims)]))  # the file has the innermost first
        number, start = self._number("I"), self._number("Q")
        if number not in TYPES:
            hint = f"types that are read: {', '.join(type.name for type in TYPES.values())}"
            raise ModelError(f"{self._path}: {name} has weights of type {number}, which cannot be read", hint=hint)
        return name, TensorEntry(TYPES[number], shape, start, start + _num_bytes(name, TYPES[number], shape))

    def _value(self, kind: int, depth: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._number(NUMBERS[kind])
        if depth == 0:
            raise ValueError("arrays in arrays in arrays")
        inner, count = self._number("I"), self._number("Q")
        if count > len(self._data) - self._offset:
            raise ValueError(f"an array of {count} values at byte {self._offset}")
        if inner in NUMBERS:
            code = f"<{count}{NUMBERS[inner]}"
            return list(struct.unpack(code, self._bytes(struct.calcsize(code))))
        return [self._value(inner, depth - 1) for _ in range(count)]

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._bytes(struct.calcsize(f"<{code}")))[0]

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", errors="replace")

    def _bytes(self, count: int) -> bytes:
        self._offset += count
        if self._offset > len(self._data):
            raise ValueError(f"it ends at byte {len(self._data)}, in the middle of its metadata")
        return self._data[self._offset - count : self._offset]


def _num_bytes(name: str, type: TensorType, shape: tuple[int, ...]) -> int:
    if min(shape) < 1 or shape[-1] % type.num_weights:
        raise ValueError(f"{name} is {list(shape)}, whose rows are no whole blocks of {type.name}")
    return prod(shape) // type.num_weights * type.num_bytes


def _first(offset: int, alignment: Any) -> int:
    """The first byte of tensors after a head of `offset` bytes."""
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"its alignment is {alignment!r}")
    return -(-offset // alignment) * alignment


def _placed(entries: Iterable[tuple[str, TensorEntry]], first: int, size: int) -> dict[str, TensorEntry]:
    """The tensors by name with their places in a file of `size` bytes. Raises ValueError unless each lies in it, in its own place."""
    tensors: dict[str, TensorEntry] = {}
    for name, entry in entries:
        if name in tensors:
            raise ValueError(f"two tensors are {name}")
        tensors[name] = entry._replace(start=first + entry.start, stop=first + entry.stop)
        if first + entry.stop > size:
            raise ValueError(f"it ends at byte {size:,}, before the end of {name}")
    in_order = sorted(tensors.items(), key=lambda item: item[1].start)
    for (name, entry), (other, after) in pairwise(in_order):
        if after.start < entry.stop:
            raise ValueError(f"{name} and {other} overlap")
    return tensors
