"""How much of the disk the bank may take and write, from the settings and the disk itself. Knows nothing of what is stored."""

from __future__ import annotations

import logging

from forerun.bank.tier import files
from forerun.bank.tier.disk import INDEX_SLACK_BYTES
from forerun.config import Config
from forerun.errors import ConfigError
from forerun.machine import free_bytes
from forerun.state.record import SEGMENT_TOKENS
from forerun.state.spec import StateSpec

log = logging.getLogger(__name__)

DISK_LIMIT_BYTES = 20 << 30
DAILY_WRITE_BYTES = 200 << 30


def disk_limit(config: Config, held_bytes: int) -> int:
    """Bytes that the bank's folder may hold: as set, else the lesser of DISK_LIMIT_BYTES and a tenth of what is free without what it holds
    already.
    """
    if config.bank_disk_bytes is not None:
        return config.bank_disk_bytes
    return min(DISK_LIMIT_BYTES, (free_bytes(config.bank_path) + held_bytes) // 10)


def held_bytes(config: Config) -> int:
    """Bytes that the bank's folder holds; none if it is not there. For who does not hold it: it looks at every file."""
    return sum(size for _, size in files.sizes(config.bank_path))


def daily_limit(config: Config) -> int:
    """Bytes that may be written a day: as set, else the lesser of DAILY_WRITE_BYTES and half of the disk's free space."""
    if config.bank_daily_write_bytes is not None:
        return config.bank_daily_write_bytes
    return min(DAILY_WRITE_BYTES, free_bytes(config.bank_path) // 2)


def check_disk_limit(config: Config, spec: StateSpec, limit_bytes: int) -> None:
    """Raises ConfigError for a limit, as set, within which nothing could be kept; warns of one that the disk dictates."""
    needed_bytes = INDEX_SLACK_BYTES + SEGMENT_TOKENS * spec.bytes_per_token + 2 * spec.bytes_per_mark
    if limit_bytes >= needed_bytes:
        return
    if config.bank_disk_bytes is not None:
        found = f"bank_disk_bytes = {limit_bytes}: this model's conversations need {needed_bytes:,} bytes at least"
        raise ConfigError(found, hint="give more, or 0 to keep nothing on disk")
    log.warning("the disk is nearly full: %d bytes for stored conversations keep none of this model's", limit_bytes)
