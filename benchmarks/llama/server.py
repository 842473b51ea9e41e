"""A server process of either kind, and one streamed answer with its times."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

START_LIMIT_S, STOP_LIMIT_S = 120.0, 20.0


@dataclass(frozen=True)
class Limits:
    """Of a request: tokens of its answer, its seconds, and the tokens that may not end it."""

    answer_tokens: int
    request_s: float
    end_tokens: list[int]


@dataclass
class Server:
    """kind: "forerun" or "llama". It runs between `__enter__` and `__exit__`.

    llama.cpp is stopped between its requests: under an active wait policy its idle threads would keep the processors from the other arms.
    """

    name: str
    kind: str
    command: list[str]
    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    checkpoint_bytes: int = 0

    def __enter__(self) -> Server:
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen([*self.command, "--port", str(port)], stdout=log, stderr=log, env=os.environ | self.environ)
        self._wait()
        self.loaded_bytes = self.resident_bytes()
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, tokens: list[int], limits: Limits) -> dict[str, Any]:
        """One greedy answer: tokens a second of prefill (to the first piece) and of decoding, processor seconds, resident bytes, text.

        If it takes longer than its limit: {"over_limit_s": limit, "tokens": those that came}; the request is given up.
        """
        self._signal(signal.SIGCONT)
        try:
            return self._answer(tokens, limits)
        finally:
            self._signal(signal.SIGSTOP)

    def _answer(self, tokens: list[int], limits: Limits) -> dict[str, Any]:
        pieces: list[tuple[float, str]] = []
        start, cpu_start, num_tokens = time.perf_counter(), self._cpu_s(), 0
        try:
            for event in self._events(tokens, limits):
                text, num = self._piece(event)
                num_tokens = num or num_tokens
                if text:
                    pieces.append((time.perf_counter() - start, text))
        except TimeoutError:
            return {"over_limit_s": limits.request_s, "tokens": len(pieces)}
        first_s, last_s = pieces[0][0], pieces[-1][0]
        return {
            "prefill_tok_per_s": len(tokens) / first_s,
            "decode_tok_per_s": (num_tokens - 1) / (last_s - first_s),
            "cpu_s": self._cpu_s() - cpu_start,
            "rss_bytes": self.resident_bytes(),
            "text": "".join(text for _, text in pieces),
        }

    def _events(self, tokens: list[int], limits: Limits) -> Iterator[dict[str, Any]]:
        """The events of a stream. Raises TimeoutError at the limit."""
        path, body = self._request(tokens, limits)
        deadline = time.monotonic() + limits.request_s
        try:
            with httpx.stream("POST", self.url + path, json=body, timeout=limits.request_s) as response:
                if response.status_code != 200:
                    raise RuntimeError(f"{self.name}: {response.read().decode()}")
                for line in response.iter_lines():
                    if time.monotonic() > deadline:
                        raise TimeoutError
                    if line.startswith("data: {"):
                        yield json.loads(line[6:])
        except httpx.TimeoutException as error:
            raise TimeoutError from error

    def _request(self, tokens: list[int], limits: Limits) -> tuple[str, dict[str, Any]]:
        if self.kind == "llama":
            return "/completion", {
                "prompt": tokens,
                "n_predict": limits.answer_tokens,
                "temperature": 0,
                "stream": True,
                "ignore_eos": True,
            }
        body = {"model": "any", "prompt": tokens, "max_tokens": limits.answer_tokens, "temperature": 0, "stream": True}
        bans = {str(token): -100 for token in limits.end_tokens}
        return "/v1/completions", body | {"stream_options": {"include_usage": True}, "logit_bias": bans}

    def _piece(self, event: dict[str, Any]) -> tuple[str, int]:
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

    def _signal(self, number: int) -> None:
        if self.kind == "llama":
            self.process.send_signal(number)

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forerun(name: str, model: Path, folder: Path, *, depth: str) -> Server:
    """forerun, storing as by default."""
    own = folder / name.replace(" ", "-")
    options = ["--draft-depth", depth, "--bank-dir", str(own / "bank"), "--request-log", str(own / "requests.jsonl")]
    return Server(name, "forerun", [sys.executable, "-m", "forerun.cli", "serve", str(model), *options], own)


def llama(name: str, program: Path, model: Path, folder: Path, *, threads: int, context: int, wait_policy: str) -> Server:
    """llama-server with this GGUF file; its keys and values are float16, as by default, for `context` tokens."""
    options = ["-t", str(threads), "-tb", str(threads), "-c", str(context), "-np", "1", "--no-webui"]
    environ = {} if wait_policy == "default" else {"OMP_WAIT_POLICY": wait_policy}
    return Server(
        name, "llama", [str(program), "-m", str(model), "--host", "127.0.0.1", *options], folder / name.replace(" ", "-"), environ
    )
