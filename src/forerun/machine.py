"""What this machine has: memory, and room on its disks. Knows nothing of what either is for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def memory_bytes() -> int:
    """The machine's memory, whoever uses it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes(path: Path) -> int:
    """What is free on the disk where `path` is, or would be made."""
    path = path.absolute()
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
