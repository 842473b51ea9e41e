"""This machine's memory and free disk space. Does not know what either is for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # Linux cgroups v2


def memory_bytes() -> int:
    """The machine's total memory, or the container's limit if that is lower."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    return whole if limit == "max" else min(whole, int(limit))


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of `path`, which need not exist."""
    path = path.absolute()
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
