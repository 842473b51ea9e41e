"""A server that is asked one request at a time, and its answer with its times."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from llama.process import ServerProcess


@dataclass(frozen=True)
class Limits:
    """Of a request: tokens of its answer, its seconds, and the tokens that may not end it."""

    answer_tokens: int
    request_s: float
    end_tokens: list[int]


@dataclass
class Server(ServerProcess):
    """forerun or llama.cpp. The latter is stopped between its requests: under an active wait policy its idle threads would keep the
    processors from the other arms.
    """

    checkpoint_bytes: int = 0

    def __enter__(self) -> Self:
        super().__enter__()
        self.loaded_bytes = self.resident_bytes()
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._signal(signal.SIGCONT)
        super().__exit__(kind, error, traceback)

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
        start, cpu_start, num_tokens = time.perf_counter(), self.cpu_s(), 0
        try:
            for event in self._events(tokens, limits):
                text, num = self.piece(event)
                num_tokens = num or num_tokens
                if text:
                    pieces.append((time.perf_counter() - start, text))
        except TimeoutError:
            return {"over_limit_s": limits.request_s, "tokens": len(pieces)}
        first_s, last_s = pieces[0][0], pieces[-1][0]
        return {
            "prefill_tok_per_s": len(tokens) / first_s,
            "decode_tok_per_s": (num_tokens - 1) / (last_s - first_s),
            "cpu_s": self.cpu_s() - cpu_start,
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

    def _signal(self, number: int) -> None:
        if self.kind == "llama":
            self.process.send_signal(number)


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
