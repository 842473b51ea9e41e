"""Looks at what a server stands on: versions, compiler, memory, disk, the bank's folder, the port. Knows no model and no MLX."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from uuid import uuid4

from rich.filesize import decimal

from forerun.bank.tier import files
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.quota import disk_limit, held_bytes
from forerun.config import Config
from forerun.doctor.finding import Finding, failure, ok, warning
from forerun.errors import ForerunError
from forerun.serve.client import health

PACKAGES = ("forerun", "mlx", "tokenizers", "fastapi", "uvicorn", "pydantic")
PROBE_BYTES = 64 << 20
SLOW_READ_BYTES_PER_S = 200e6
MAX_READ_RECORDS = 50


def versions() -> Iterator[Finding]:
    """Of Python and the packages that matter."""
    known = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            known[name] = "not installed as a package"
    yield ok("versions", ", ".join(f"{name} {number}" for name, number in known.items()))
    yield ok("system", f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors")


def compiler(is_cpu: bool) -> Iterator[Finding]:
    """MLX compiles its fused kernels for a CPU while it runs."""
    found = shutil.which("g++")
    if found or not is_cpu:
        yield ok("compiler", found or "not needed on this device")
    else:
        yield warning("compiler", "no g++: steps of decoding run eager", "install g++, or set eager = true to say that it is meant so")


def memory(config: Config, device_bytes: int) -> Iterator[Finding]:
    """What there is, against what conversations may take of it."""
    text = f"{decimal(device_bytes)}, conversations may take {decimal(config.bank_ram_bytes)} (bank_ram_bytes)"
    if config.bank_ram_bytes > device_bytes // 2:
        yield warning("memory", text, "lower bank_ram_bytes: the model and its steps need room too")
    else:
        yield ok("memory", text)


def disk(config: Config) -> Iterator[Finding]:
    """Free bytes against the quota, and how fast what was written is read back past the system's cache."""
    if config.bank_disk_bytes == 0:
        yield warning("disk", "nothing is kept on disk: a restart forgets all", "set bank_disk_bytes to more than 0")
        return
    folder = next(f for f in (config.bank_path, *config.bank_path.parents) if f.is_dir())
    free_bytes, speed = shutil.disk_usage(folder).free, read_speed(folder)
    limit_bytes = disk_limit(config, held_bytes(config))
    text = f"{decimal(free_bytes)} free at {folder}, quota {decimal(limit_bytes)}, reads {speed / 1e6:,.0f} MB/s"
    if free_bytes < min(limit_bytes, 1 << 30):
        yield warning("disk", text, "free some space, or name another disk with bank_dir")
    elif speed < SLOW_READ_BYTES_PER_S:
        yield warning("disk", text, "put bank_dir on an SSD: conversations come back from it")
    else:
        yield ok("disk", text)


def read_speed(folder: Path) -> float:
    """Bytes a second of a file of PROBE_BYTES, written and read again. Raises BankError."""
    probe = folder / f".forerun-probe-{uuid4().hex}"
    with files.explained(f"cannot write in {folder}"):
        try:
            files.publish(probe, [os.urandom(PROBE_BYTES)])
            return PROBE_BYTES / _seconds_to_read(probe)
        finally:
            probe.unlink(missing_ok=True)


def _seconds_to_read(path: Path) -> float:
    with files.opened(path, os.O_RDONLY) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        begun_s = time.perf_counter()
        files.read(file, 0, PROBE_BYTES)
        return time.perf_counter() - begun_s


def bank(config: Config) -> Iterator[Finding]:
    """What the folder holds, and whether its records are whole (those used last, if there are many)."""
    folder = config.bank_path
    if not (folder / "index.db").exists():
        yield ok("bank", f"{folder} holds nothing yet")
        return
    tier = DiskTier.view(folder)
    try:
        yield from _records(tier, folder)
    finally:
        tier.close()


def _records(tier: DiskTier, folder: Path) -> Iterator[Finding]:
    infos = tier.index.inventory()
    damaged = [text for info in infos[-MAX_READ_RECORDS:] if (text := tier.damage(info.key))]
    num_read = min(len(infos), MAX_READ_RECORDS)
    text = f"{len(infos):,} records in {decimal(tier.num_bytes)} at {folder}, {num_read} of them read, {len(damaged)} damaged"
    if damaged:
        yield failure("bank", f"{text}: {damaged[0]}", "a server sets them aside by itself; is the disk failing? see `forerun bank verify`")
    elif tier.quarantined:
        yield warning("bank", f"{text}, {tier.quarantined} set aside", "`forerun bank prune` removes what was set aside")
    else:
        yield ok("bank", text)


def port(config: Config) -> Iterator[Finding]:
    """Whether a server could listen, or does already."""
    url = f"http://{config.host}:{config.port}"
    try:
        socket.create_server((config.host, config.port)).close()
    except OSError as error:
        yield _listener(url, config.sent_key, error)
    else:
        yield ok("port", f"{config.host}:{config.port} is free")


def _listener(url: str, key: str, error: OSError) -> Finding:
    """Who listens there."""
    try:
        return ok("port", f"a server of {health(url, key=key)['model']['id']} listens at {url}")
    except (ForerunError, KeyError, TypeError, ValueError):
        return failure("port", f"{url}: {error.strerror or error}, and no forerun answers there", "set another port, or end what uses it")
