"""The digest of a checkpoint's weights: computed while they are read, and cached on disk while the files are unchanged.

Knows nothing of the tensors' purpose.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import xxhash

from forerun import small_files
from forerun.config import cache_home

# Part of the name of a cached digest: raise it when the digested content changes.
VERSION = 2
# A file written more recently may be written again within the same tick of its clock.
STABLE_AFTER_S = 2.0


class WeightsDigest:
    """xxh3-128 over names, dtypes, shapes and bytes of tensors, in any order."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def add(self, name: str, tensor: mx.array) -> None:
        """Add an evaluated tensor, as stored."""
        content = xxhash.xxh3_128(np.asarray(tensor.reshape(-1).view(mx.uint8)).data)
        self._parts[name] = f"{tensor.dtype} {tensor.shape} {content.hexdigest()}"

    def hexdigest(self, config: Mapping[str, Any]) -> str:
        """The digest of all tensors so far and the configuration."""
        return xxhash.xxh3_128(json.dumps([self._parts, config], sort_keys=True).encode()).hexdigest()


def signature(files: Iterable[Path]) -> str:
    """A hash of the files' device, inode, size and modification time."""
    stats = [file.stat() for file in files]
    fields = [VERSION, *((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)]
    return xxhash.xxh3_128(json.dumps(fields).encode()).hexdigest()


def remembered(signed: str) -> str:
    """The cached digest of the files with this signature; "" if there is none."""
    file = _folder() / signed
    stored = file.read_text() if file.is_file() else ""
    return stored if re.fullmatch("[0-9a-f]{32}", stored) else ""


def remember(files: Iterable[Path], digest: str) -> None:
    """Cache the digest of these files, unless one was just written."""
    if any(time.time() - file.stat().st_mtime < STABLE_AFTER_S for file in files):
        return
    small_files.keep(_folder() / signature(files), digest)


def _folder() -> Path:
    return cache_home() / "digests"
