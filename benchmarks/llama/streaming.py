"""A server that is asked several requests at once, and one streamed answer with its times."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forerun.models.load import DEMO_MODEL
from forerun.text.tokenizer import Tokenizer
from llama.process import ServerProcess

ANSWER_TOKENS = 128
END_TOKENS = (8183, 8185)
GREEDY: dict[str, Any] = {"temperature": 0}


@dataclass(frozen=True, slots=True)
class Stream:
    """One streamed answer. Times are of time.perf_counter(). pieces: when each arrived, and its text. report: `forerun`'s own, else {}."""

    begun_s: float
    pieces: tuple[tuple[float, str], ...]
    num_tokens: int
    report: dict[str, Any]

    @property
    def first_s(self) -> float:
        return self.pieces[0][0]

    @property
    def last_s(self) -> float:
        return self.pieces[-1][0]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)


@dataclass(frozen=True)
class Watch:
    """has_begun: set at a stream's first line of data. is_over: the client then leaves."""

    has_begun: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    def over(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            if line.startswith(b"data: {"):
                self.has_begun.set()
            if self.is_over.is_set():
                return
            yield line


@dataclass
class Server(ServerProcess):
    """Of any kind."""

    def ask(self, tokens: list[int]) -> dict[str, Any]:
        """One greedy answer: tokens a second of prefill (to the first piece) and of decoding, processor seconds, resident bytes, text."""
        cpu_start = self.cpu_s()
        answer = self.stream(tokens)
        return {
            "prefill_tok_per_s": len(tokens) / (answer.first_s - answer.begun_s),
            "decode_tok_per_s": (answer.num_tokens - 1) / (answer.last_s - answer.first_s),
            "cpu_s": self.cpu_s() - cpu_start,
            "rss_bytes": self.resident_bytes(),
            "text": answer.text,
        }

    def stream(
        self,
        tokens: list[int],
        sampling: dict[str, Any] = GREEDY,
        num: int = ANSWER_TOKENS,
        limit_s: float = 600.0,
        watch: Watch | None = None,
        **fields: Any,
    ) -> Stream:
        """One answer of `num` tokens, as it arrives; end tokens are banned. limit_s: of a wait for a piece.

        num_tokens is 0 if the client left. Raises RuntimeError, OSError.
        """
        path, body = self._request(tokens, num, sampling | fields)
        lines = list[tuple[float, bytes]]()
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=limit_s)
        begun_s = time.perf_counter()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        lines += (
            (time.perf_counter(), line) for line in (watch.over(response) if watch else response)
        )  # parsed later: the client shares the processors
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {b''.join(line for _, line in lines).decode()}")
        events = [(at_s, json.loads(line[6:])) for at_s, line in lines if line.startswith(b"data: {")]
        if failed := [event["error"] for _, event in events if "error" in event]:
            raise RuntimeError(f"{self.name}: {failed[0]}")
        pieces = [(at_s, text) for at_s, event in events if (text := self.piece(event)[0])]
        report: dict[str, Any] = next((event["forerun"] for _, event in reversed(events) if "forerun" in event), {})
        return Stream(begun_s, tuple(pieces), max((self.piece(event)[1] for _, event in events), default=0), report)

    def _request(self, tokens: list[int], num: int, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if self.kind == "llama":
            return "/completion", {"prompt": tokens, "n_predict": num, "stream": True, "ignore_eos": True} | fields
        prompt = text_of(tokens) if self.kind == "mlx-lm" else tokens
        body = {"model": "default_model", "prompt": prompt, "max_tokens": num, "stream": True} | fields
        bans = {str(token): -100 for token in END_TOKENS}
        return "/v1/completions", body | {"stream_options": {"include_usage": True}, "logit_bias": bans}


def text_of(tokens: list[int]) -> str:
    """The text of a prompt, for a server that takes no token ids."""
    return Tokenizer.load(DEMO_MODEL).decode(tokens)


def forerun(name: str, folder: Path, *, depth: str, more: tuple[str, ...] = ()) -> Server:
    """forerun with the bundled model, storing as by default. more: further options."""
    own = folder / name.replace(" ", "-")
    options = ["--draft-depth", depth, "--bank-dir", str(own / "bank"), "--request-log", str(own / "requests.jsonl"), *more]
    return Server(name, "forerun", [sys.executable, "-m", "forerun.cli", "serve", *options], own)


def mlx_lm(name: str, model: Path, folder: Path, *, blas: str) -> Server:
    """mlx-lm's server, which decodes requests together by default. model: in float32; blas: a fast OpenBLAS."""
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--log-level", "ERROR"]
    return Server(name, "mlx-lm", command, folder / name, {"LD_PRELOAD": blas})


def llama(name: str, program: Path, gguf_py: Path, weights: str, folder: Path, *, threads: int, wait_policy: str, slots: int = 1) -> Server:
    """llama-server with the bundled model, weights "f32", "bf16" or "q8_0"; its keys and values are float16, as by default. slots: requests
    at once.
    """
    model = folder / f"demo-{weights}.gguf"
    if not model.exists():
        environ = os.environ | {"PYTHONPATH": str(gguf_py)}
        writer = Path(__file__).with_name("gguf_of_demo.py")
        subprocess.run([sys.executable, writer, DEMO_MODEL, model, weights], env=environ, check=True)
    options = ["-t", str(threads), "-tb", str(threads), "-c", "32768", "-np", str(slots), "--no-webui"]
    environ = {} if wait_policy == "default" else {"OMP_WAIT_POLICY": wait_policy}
    return Server(
        name, "llama", [str(program), "-m", str(model), "--host", "127.0.0.1", *options], folder / name.replace(" ", "-"), environ
    )
