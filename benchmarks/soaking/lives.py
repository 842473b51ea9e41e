"""Servers on one folder, one after another: each runs for a while, then ends by SIGTERM or SIGKILL. Its footprint is sampled meanwhile."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
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
}
FULL_FRAC = 0.9  # of the RAM for conversations: from here on it counts as full
MIN_SAMPLES = 6


@dataclass
class Life:
    """One server from its start to its end. is_ending: errors that its clients see from now on are expected."""

    server: Server
    begun_s: float
    end: str
    is_ending: bool = False
    series: list[dict[str, float]] = field(default_factory=list)

    def sample(self) -> None:
        """Append the footprint of now."""
        pages = int(Path(f"/proc/{self.server.line['pid']}/statm").read_text().split()[1])
        found = metrics(self.server.url)
        row = {"at_s": time.monotonic() - self.begun_s, "rss_bytes": float(pages * os.sysconf("SC_PAGE_SIZE"))}
        self.series.append(row | {name: found[gauge] for name, gauge in GAUGES.items()})

    def growth(self, after_s: float, ram_bytes: int) -> dict[str, Any]:
        """By how much the footprint grew: median of the last third of the samples over that of the first, minus one. Only samples count
        from `after_s` on in which the RAM for conversations is full. None with fewer than MIN_SAMPLES.
        """
        full_s = next((s["at_s"] for s in self.series if s["bank_ram_bytes"] >= FULL_FRAC * ram_bytes), None)
        settled = [s for s in self.series if full_s is not None and s["at_s"] >= max(after_s, full_s)]
        third = len(settled) // 3
        grown: dict[str, Any] = {"ram_full_s": full_s, "samples": len(settled)}
        for name in ("rss_bytes", "mlx_active_bytes"):
            first, last = ([s[name] for s in part] for part in (settled[:third], settled[len(settled) - third :]))
            grown[name] = statistics.median(last) / statistics.median(first) - 1 if len(settled) >= MIN_SAMPLES else None
        return grown


class Home:
    """The folder of all servers. life: the current one; None while none runs."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        keys = folder / "keys"
        keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
        keys.chmod(0o600)
        self._command = [*serve_command(DEMO_MODEL, folder / "bank"), "--api-key-file", str(keys), "--log-format", "json", *options]
        self.log, self.life, self.lives, self.failures = folder / "server.log", None, list[Life](), list[str]()
        self.life: Life | None

    def run(self, life_s: float, sample_s: float, end: str, stop: threading.Event) -> None:
        """One life. What is wrong with its end is appended to `failures`."""
        life = Life(Server.start(self._command, self.log), time.monotonic(), end)
        self.lives.append(life)
        self.life = life
        try:
            while time.monotonic() < life.begun_s + life_s and not stop.is_set():
                life.sample()
                stop.wait(sample_s)
        finally:
            life.is_ending, self.life = True, None
            self._end(life)

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
