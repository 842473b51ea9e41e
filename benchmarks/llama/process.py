"""A server process of any kind: its start and end, its processor time and memory, and what an event of its streams says."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

START_LIMIT_S, STOP_LIMIT_S = 120.0, 60.0


@dataclass
class ServerProcess:
    """kind: "forerun", "llama" or "mlx-lm". It runs between `__enter__` and `__exit__`."""

    name: str
    kind: str
    command: list[str]
    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen([*self.command, "--port", str(port)], stdout=log, stderr=log, env=os.environ | self.environ)
        self._wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cpu_s(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Memory that the process holds now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def piece(self, event: dict[str, Any]) -> tuple[str, int]:
        """Text of an event, and the number of tokens if it names it."""
        if self.kind == "llama":
            return event.get("content", ""), event.get("tokens_predicted", 0) if event.get("stop") else 0
        choices = event.get("choices") or [{}]
        return choices[0].get("text") or "", (event.get("usage") or {}).get("completion_tokens", 0)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(self.url + "/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not start: {(self.folder / 'log').read_text()[-2000:]}")
