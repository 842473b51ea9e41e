"""What this machine has: memory, and room on its disks. Knows nothing of what either is for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of Linux' control groups, version 2


def memory_bytes() -> int:
    """The machine's memory, whoever uses it, or as much as a container may take."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    return whole if limit == "max" else min(whole, int(limit))


def free_bytes(path: Path) -> int:
    """What is free on the disk where `path` is, or would be made."""
    path = path.absolute()
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
