"""The metadata of a GGUF file: of the model and its vocabulary. Weights are not read.

Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

from forerun.errors import ModelError

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MAX_DEPTH = 2


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


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys and values, arrays as lists. Raises ModelError."""
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _read(path: Path, changed_ns: int) -> dict[str, Any]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).metadata()
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise ModelError(f"{path} cannot be read as GGUF: {error}", hint="the file is damaged or truncated; fetch it again") from error


class _Reader:
    """Reads the head of a file in order. Raises ValueError, KeyError, struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._offset = data, 0

    def metadata(self) -> dict[str, Any]:
        magic, version = self._bytes(4), self._number("I")
        if magic != MAGIC or version not in VERSIONS:
            raise ValueError(f"it begins with {magic!r}, version {version}")
        self._number("Q")  # number of tensors
        return {self._string(): self._value(self._number("I"), MAX_DEPTH) for _ in range(self._number("Q"))}

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
