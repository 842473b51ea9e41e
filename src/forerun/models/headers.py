"""The header of a safetensors file: names, dtypes and shapes of tensors. Reads no values and needs no MLX; knows nothing of models.

Source: the format's description, https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from forerun.errors import ModelError

_WIDTHS = {
    64: "F64 I64 U64",
    32: "F32 I32 U32",
    16: "F16 BF16 I16 U16",
    8: "F8_E4M3 F8_E5M2 F8_E8M0 I8 U8 BOOL",
    4: "F4",
}
DTYPE_BITS = {name: bits for bits, names in _WIDTHS.items() for name in names.split()}
# The format's limit.
_HEADER_BYTES = 100_000_000
_HINT = "the file is damaged or truncated; fetch it again"


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One stored tensor. dtype: as safetensors spells it (BF16, F32, U32)."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_headers(file: Path) -> dict[str, TensorHeader]:
    """Every tensor of the file by name. Raises ModelError if the file is shorter than its header requires, or not a safetensors file."""
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size - 8, _HEADER_BYTES):
                raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
            return _parsed(json.loads(stream.read(length)), size - 8 - length)
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ModelError(f"{file} cannot be read: {error}", hint=_HINT) from error


def _parsed(header: dict[str, Any], data_bytes: int) -> dict[str, TensorHeader]:
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        (start, stop), shape = entry["data_offsets"], tuple(entry["shape"])
        if not 0 <= start <= stop <= data_bytes:
            raise ValueError(f"{name} ends at byte {stop:,} of {data_bytes:,}")
        if (stop - start) * 8 != prod(shape) * DTYPE_BITS[entry["dtype"]]:
            raise ValueError(f"{name} has {stop - start:,} bytes, which is not {list(shape)} of {entry['dtype']}")
        tensors[name] = TensorHeader(entry["dtype"], shape, stop - start)
    return tensors
