"""The digest of a checkpoint's weights: taken while they are read, and remembered as long as its files are the same ones, untouched.

Knows nothing of what the tensors are for.
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

# Part of the name under which a digest is remembered: to be raised when what is digested changes.
VERSION = 1
# A file written to this lately may be written to again within the same tick of its clock.
STABLE_AFTER_S = 2.0


class WeightsDigest:
    """xxh3-128 over names, types, shapes and bytes of tensors, in whatever order they come."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def add(self, name: str, tensor: mx.array) -> None:
        """Take in an evaluated tensor, as stored."""
        content = xxhash.xxh3_128(np.asarray(tensor.reshape(-1).view(mx.uint8)).data)
        self._parts[name] = f"{tensor.dtype} {tensor.shape} {content.hexdigest()}"

    def hexdigest(self, config: Mapping[str, Any]) -> str:
        """Of all tensors so far and of the configuration."""
        return xxhash.xxh3_128(json.dumps([self._parts, config], sort_keys=True).encode()).hexdigest()


def signature(files: Iterable[Path]) -> str:
    """Names these very files as they are now: device, inode, size, time of the last change."""
    stats = [file.stat() for file in files]
    known = [VERSION, *((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)]
    return xxhash.xxh3_128(json.dumps(known).encode()).hexdigest()


def remembered(signed: str) -> str:
    """The digest of the files with this signature; "" if it is not known."""
    file = _folder() / signed
    known = file.read_text() if file.is_file() else ""
    return known if re.fullmatch("[0-9a-f]{32}", known) else ""


def remember(files: Iterable[Path], digest: str) -> None:
    """Keep the digest of these files, unless one was written to just now."""
    if any(time.time() - file.stat().st_mtime < STABLE_AFTER_S for file in files):
        return
    small_files.keep(_folder() / signature(files), digest)


def _folder() -> Path:
    return cache_home() / "digests"
