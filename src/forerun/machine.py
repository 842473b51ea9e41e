"""This machine's memory and free disk space. Does not know what either is for."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from pathlib import Path

import psutil

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # Linux cgroups v2
CONTAINER_USE = CONTAINER_LIMIT.with_name("memory.current")


def memory_bytes() -> int:
    """The machine's total memory, or the container's limit if that is lower."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    return whole if limit == "max" else min(whole, int(limit))


def available_bytes() -> int:
    """Memory that programs can still take without swapping, caches of files included; less where a container's limit leaves less."""
    available = psutil.virtual_memory().available
    if not CONTAINER_USE.exists() or (limit := CONTAINER_LIMIT.read_text().strip()) == "max":
        return available
    reclaimable = re.search(r"^inactive_file (\d+)$", CONTAINER_USE.with_name("memory.stat").read_text(), re.MULTILINE)
    used = int(CONTAINER_USE.read_text()) - (int(reclaimable[1]) if reclaimable else 0)
    return max(0, min(available, int(limit) - used))


def return_freed_memory() -> None:
    """Return the free pages of the C library's heap to the system: glibc keeps them otherwise. Nothing on other libraries."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(ctypes.c_size_t(0))


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of `path`, which need not exist."""
    path = path.absolute()
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
