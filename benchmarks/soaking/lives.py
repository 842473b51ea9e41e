"""Servers on one folder, one after another: each runs for a while, then ends by SIGTERM or SIGKILL. Its footprint is sampled meanwhile."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from forerun.demo.server import Server, serve_command
from forerun.errors import ForerunError
from forerun.models.load import DEMO_MODEL

KEYS = {"one": "first-tenant-0123456789", "two": "second-tenant-0123456789"}
GAUGES = {
    "mlx_active_bytes": "forerun_mlx_active_bytes",
    "mlx_cache_bytes": "forerun_mlx_cache_bytes",
    "bank_ram_bytes": "forerun_bank_ram_bytes",
    "running": "forerun_requests_running",
    "waiting": "forerun_requests_waiting",
    "pending_writes": "forerun_bank_pending_writes",
}
BUSY = ("running", "waiting", "pending_writes")
REST_LIMIT_S = 120.0
FULL_FRAC = 0.9  # of the RAM for conversations: from here on it counts as full
MIN_RESTS = 6
NUM_RESTS = 20  # in a life, or fewer
MIN_WORK_S = 8.0  # between two rests
SAMPLE_S = 5.0
TRIM_S = 2.0
GROWING = ("rss_bytes", "other_active_bytes")


@dataclass
class Life:
    """One server from its start to its end. is_ending: errors that its clients see from now on are expected.

    series: samples while it works; rests: samples while nothing runs, waits or is written.
    """

    server: Server
    begun_s: float
    end: str
    is_ending: bool = False
    series: list[dict[str, float]] = field(default_factory=list)
    rests: list[dict[str, float]] = field(default_factory=list)

    def rest(self, awaited: Sequence[str]) -> None:
        """Wait until these gauges are zero, while the clients pause; append the footprint to `rests`, once the system has had time to take
        memory back. Raises ForerunError.
        """
        end_s = time.monotonic() + REST_LIMIT_S
        while any((found := self.sample())[name] for name in awaited):
            if time.monotonic() > end_s:
                raise ForerunError(f"the server does not come to rest: {found}")
            time.sleep(0.1)
        time.sleep(TRIM_S)
        self.rests.append(self.sample())

    def sample(self) -> dict[str, float]:
        """The footprint of now."""
        pages = int(Path(f"/proc/{self.server.line['pid']}/statm").read_text().split()[1])
        found = metrics(self.server.url)
        row = {"at_s": time.monotonic() - self.begun_s, "rss_bytes": float(pages * os.sysconf("SC_PAGE_SIZE"))}
        return row | {name: found[gauge] for name, gauge in GAUGES.items()}

    def growth(self, after_s: float, ram_bytes: int) -> dict[str, Any]:
        """By how much the footprint at rest grew: median of the last third of the rests over that of the first, minus one. Only rests count
        from `after_s` on, once the RAM for conversations has been full. None with fewer than MIN_RESTS.

        other_active_bytes: MLX's active memory without the bank's conversations, whose size varies below their limit.
        """
        full_s = next((s["at_s"] for s in self.series if s["bank_ram_bytes"] >= FULL_FRAC * ram_bytes), None)
        rests = [s | {"other_active_bytes": s["mlx_active_bytes"] - s["bank_ram_bytes"]} for s in self.rests]
        settled = [s for s in rests if full_s is not None and s["at_s"] >= max(after_s, full_s)]
        third = len(settled) // 3
        grown: dict[str, Any] = {"ram_full_s": full_s, "rests": len(settled)}
        for name in GROWING:
            first, last = ([s[name] for s in part] for part in (settled[:third], settled[len(settled) - third :]))
            grown[name] = statistics.median(last) / statistics.median(first) - 1 if len(settled) >= MIN_RESTS else None
        return grown


class Home:
    """The folder of all servers. life: the current one; None while none runs, and while it comes to rest: no client then begins a turn."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        keys = folder / "keys"
        keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
        keys.chmod(0o600)
        self._command = [*serve_command(DEMO_MODEL, folder / "bank"), "--api-key-file", str(keys), "--log-format", "json", *options]
        self.log, self.lives, self.failures = folder / "server.log", list[Life](), list[str]()
        self.life: Life | None = None

    def run(self, life_s: float, end: str, stop: threading.Event, *, is_judged: bool) -> None:
        """One life, with rests. What is wrong with these or its end is appended to `failures`. is_judged: its growth is, so a rest lasts
        until the server has returned the memory that it does not use: MLX's buffers hold up to a GiB, at random.
        """
        awaited = (*BUSY, "mlx_cache_bytes") if is_judged else BUSY
        life = Life(Server.start(self._command, self.log), time.monotonic(), end)
        self.lives.append(life)
        try:
            while time.monotonic() < life.begun_s + life_s and not stop.is_set():
                self._work(life, max(MIN_WORK_S, life_s / NUM_RESTS), stop)
                life.rest(awaited)
            self._work(life, 1.0, stop)  # so that it ends at work
        except ForerunError as error:
            self.failures.append(str(error))
        finally:
            life.is_ending, self.life = True, None
            self._end(life)

    def _work(self, life: Life, seconds: float, stop: threading.Event) -> None:
        self.life, end_s = life, time.monotonic() + seconds
        while time.monotonic() < end_s and not stop.is_set():
            life.series.append(life.sample())
            stop.wait(min(SAMPLE_S, end_s - time.monotonic()))
        self.life = None

    def _end(self, life: Life) -> None:
        try:
            (life.server.stop if life.end == "SIGTERM" else life.server.kill)()
        except ForerunError as error:
            self.failures.append(str(error))
            life.server.kill()

    def logged_errors(self) -> list[str]:
        """Messages of the servers' logs from level error on."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [f"{line['message']} {line.get('exception', '')[-300:]}" for line in lines if line["level"] in ("error", "critical")]


def metrics(url: str) -> dict[str, float]:
    """The gauges and counters without labels."""
    answer = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {KEYS['one']}"}, timeout=60)
    rows = (line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows if "{" not in name}
