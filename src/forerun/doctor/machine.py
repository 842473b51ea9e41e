"""Checks a server's environment: versions, compiler, memory, disk, the bank's folder, the port. Knows no model and no MLX."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing
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

PACKAGES = ("forerun", "mlx", "tokenizers", "starlette", "uvicorn", "pydantic")
PROBE_BYTES = 64 << 20
SLOW_READ_BYTES_PER_S = 200e6
MAX_READ_RECORDS = 50


def versions() -> Iterator[Finding]:
    """Versions of Python and of the main packages; the system."""
    numbers = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            numbers[name] = "not installed as a package"
    yield ok("versions", ", ".join(f"{name} {number}" for name, number in numbers.items()))
    yield ok("system", f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors")


def compiler(is_cpu: bool) -> Iterator[Finding]:
    """Whether g++ is there: MLX compiles its fused kernels for a CPU at run time."""
    path = shutil.which("g++")
    if path or not is_cpu:
        yield ok("compiler", path or "not needed on this device")
    else:
        yield warning("compiler", "no g++: decoding steps run eager", "install g++, or set eager = true if that is intended")


def memory(config: Config, device_bytes: int) -> Iterator[Finding]:
    """The device's memory against the bank's RAM quota."""
    text = f"{decimal(device_bytes)}, conversations may use {decimal(config.bank_ram_bytes)} (bank_ram_bytes)"
    if config.bank_ram_bytes > device_bytes // 2:
        yield warning("memory", text, "lower bank_ram_bytes: the model and its steps need memory too")
    else:
        yield ok("memory", text)


def disk(config: Config) -> Iterator[Finding]:
    """Free bytes against the quota, and the read speed past the page cache."""
    if config.bank_disk_bytes == 0:
        yield warning("disk", "nothing is stored on disk: a restart loses all conversations", "set bank_disk_bytes to more than 0")
        return
    folder = next(f for f in (config.bank_path, *config.bank_path.parents) if f.is_dir())
    free_bytes, speed = shutil.disk_usage(folder).free, read_speed(folder)
    limit_bytes = disk_limit(config, held_bytes(config))
    text = f"{decimal(free_bytes)} free at {folder}, quota {decimal(limit_bytes)}, reads {speed / 1e6:,.0f} MB/s"
    if free_bytes < min(limit_bytes, 1 << 30):
        yield warning("disk", text, "free some space, or set bank_dir to another disk")
    elif speed < SLOW_READ_BYTES_PER_S:
        yield warning("disk", text, "put bank_dir on an SSD: conversations are restored from it")
    else:
        yield ok("disk", text)


def read_speed(folder: Path) -> float:
    """Bytes per second of reading a file of PROBE_BYTES, written for the purpose. Raises BankError."""
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
        start_s = time.perf_counter()
        files.read(file, 0, PROBE_BYTES)
        return time.perf_counter() - start_s


def bank(config: Config) -> Iterator[Finding]:
    """The number and size of the folder's records, and whether they are intact (of many, the most recently used)."""
    folder = config.bank_path
    if not (folder / "index.db").exists():
        yield ok("bank", f"{folder} holds nothing yet")
        return
    with closing(DiskTier.view(folder)) as tier:
        yield from _records(tier, folder)


def _records(tier: DiskTier, folder: Path) -> Iterator[Finding]:
    infos = tier.index.inventory()
    damaged = [text for info in infos[-MAX_READ_RECORDS:] if (text := tier.damage(info.key))]
    num_read = min(len(infos), MAX_READ_RECORDS)
    text = f"{len(infos):,} records in {decimal(tier.num_bytes)} at {folder}, {num_read} of them checked, {len(damaged)} damaged"
    if damaged:
        remedy = "a server quarantines them by itself; is the disk failing? see `forerun bank verify`"
        yield failure("bank", f"{text}: {damaged[0]}", remedy)
    elif tier.quarantined:
        yield warning("bank", f"{text}, {tier.quarantined} in quarantine", "`forerun bank prune` removes records in quarantine")
    else:
        yield ok("bank", text)


def port(config: Config) -> Iterator[Finding]:
    """Whether the port is free, or a forerun server listens there."""
    url = f"http://{config.host}:{config.port}"
    try:
        socket.create_server((config.host, config.port)).close()
    except OSError as error:
        yield _listener(url, config.sent_key, error)
    else:
        yield ok("port", f"{config.host}:{config.port} is free")


def _listener(url: str, key: str, error: OSError) -> Finding:
    """A forerun server that listens at `url`, else a failure."""
    try:
        return ok("port", f"a server of {health(url, key=key)['model']['id']} listens at {url}")
    except (ForerunError, KeyError, TypeError, ValueError):
        return failure(
            "port", f"{url}: {error.strerror or error}, and no forerun answers there", "set another port, or end the process that uses it"
        )
