"""A real `forerun serve` process: started, stopped in order, or killed. Knows its address and its log, no requests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forerun.config import environ_without_settings
from forerun.errors import ForerunError
from forerun.serve.client import health

# The first start on a machine compiles kernels: almost a minute on a CPU, two minutes on a GPU.
START_LIMIT_S = 300.0
STOP_LIMIT_S = 60.0
WRITE_LIMIT_S = 60.0
POLL_S = 0.02


class Server:
    """A running server. line: its start-up line as an object, see `forerun serve --json`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, line: dict[str, Any]) -> None:
        self._process = process
        self._log = log
        self.line = line
        self.url: str = line["url"]

    @classmethod
    def start(cls, command: list[str], log: Path) -> Server:
        """Start `command` (see `serve_command`) and wait until it listens; its stderr goes to `log`. Raises ForerunError."""
        first_line = log.with_suffix(".start")
        with log.open("ab") as errors, first_line.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environ_without_settings())
        try:
            _wait(lambda: first_line.read_bytes().endswith(b"\n") or process.poll() is not None, START_LIMIT_S, "start of the server", log)
            if process.poll() is not None:
                raise ForerunError(f"the server did not start (exit code {process.returncode}): {_tail(log)}", hint=f"see {log}")
        except BaseException:
            process.kill()
            process.wait()
            raise
        return cls(process, log, json.loads(first_line.read_text()))

    def stop(self) -> None:
        """Send SIGTERM and wait. Raises ForerunError unless it exits with code 0 in time."""
        self._process.send_signal(signal.SIGTERM)
        _wait(lambda: self._process.poll() is not None, STOP_LIMIT_S, "end of the server after SIGTERM", self._log)
        if self._process.returncode != 0:
            raise ForerunError(f"the server ended with exit code {self._process.returncode}: {_tail(self._log)}", hint=f"see {self._log}")

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self._process.kill()
        self._process.wait()

    def wait_until_written(self) -> None:
        """Wait until no disk write is pending. Raises ForerunError after WRITE_LIMIT_S."""
        _wait(lambda: health(self.url)["bank"]["pending_writes"] == 0, WRITE_LIMIT_S, "last write to disk", self._log)


def serve_command(model: Path, bank_dir: Path) -> list[str]:
    """The command line of a server on a free loopback port."""
    options = ["--port", "0", "--bank-dir", str(bank_dir), "--request-log", str(request_log(bank_dir)), "--json"]
    return [sys.executable, "-m", "forerun.cli", "serve", str(model), *options]


def request_log(bank_dir: Path) -> Path:
    """The path of such a server's request log, next to its bank."""
    return bank_dir.parent / "requests.jsonl"


def _wait(is_done: Callable[[], bool], limit_s: float, what: str, log: Path) -> None:
    deadline = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > deadline:
            raise ForerunError(f"no {what} within {limit_s:.0f} s", hint=f"see {log}")
        time.sleep(POLL_S)


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-3:]) or "its log is empty"
