"""What do the five turns cost compared with mlx-lm's own server, with the same weights, prompts and restarts?

Both servers get what they can use: mlx-lm its prompt cache, weights in float32 (its bfloat16 products are slow on a CPU) and a system
OpenBLAS, since the BLAS of the MLX wheel is slow; forerun its bank. Both answer one short request after each start, so that no first use
of a process is measured. Each continues with its own answers, as an agent would. First token: seconds at the client to the first piece of
text.

python benchmarks/against_mlx_lm.py [--repeats N] [--first-prompt-tokens N] [--dry-run] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import httpx

from evidence import evidence, write
from forerun.cli.demo import MODEL
from forerun.demo.conversation import Conversation, Scale, package_sources, record
from forerun.demo.server import Server, serve_command
from forerun.demo.turns import STEPS
from forerun.errors import ForerunError
from forerun.text.tokenizer import Tokenizer

START_LIMIT_S = 120.0
RESTORED = ("A2", "A4")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client saw of one turn."""

    turn: str
    first_s: float
    decode_tok_per_s: float
    prompt_tokens: int
    text: str


class Running(Protocol):
    url: str

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def wait_until_written(self) -> None: ...


class Peer:
    """mlx-lm's server on a free port."""

    def __init__(self, model: Path, log: Path) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--port", str(port), "--log-level", "ERROR"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"LD_PRELOAD": openblas()})
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise ForerunError(f"mlx-lm's server did not start: {log.read_text()[-300:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM, then wait."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def wait_until_written(self) -> None:
        """mlx-lm writes nothing."""

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/v1/models", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first-prompt-tokens", type=int, default=3000)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would play five turns {options.repeats} times on forerun and on mlx-lm {version('mlx-lm')}")
        return
    result = measure(options.repeats, Scale("peer", options.first_prompt_tokens, result_tokens=60, answer_tokens=32))
    config = {
        "repeats": options.repeats,
        "first_prompt_tokens": options.first_prompt_tokens,
        "mlx_lm": version("mlx-lm"),
        "mlx_lm_blas": openblas(),
        "sampling": "greedy",
    }
    server = result.pop("server")
    head = evidence(kernels=server["kernels"], model_digest=result.pop("digest"), numerics=server["numerics"], config=config)
    write(options.out, head | result)
    print(markdown(result))


def measure(repeats: int, scale: Scale) -> dict[str, Any]:
    """Every turn on both servers, alternating."""
    tokenizer = Tokenizer.load(MODEL)
    talk = record(package_sources(), scale, lambda text: len(tokenizer.encode(text, tenant="")))
    played: dict[str, list[list[Turn]]] = {"forerun": [], "mlx-lm": []}
    with tempfile.TemporaryDirectory() as name:
        folder, lines = Path(name), list[dict[str, Any]]()
        digest = in_float32(folder / "float32")
        for repeat in range(repeats):
            command = serve_command(MODEL, folder / f"bank-{repeat}")

            def ours(command: list[str] = command) -> Running:
                server = Server.start(command, folder / "forerun.log")
                lines.append(server.line)
                return server

            arms: dict[str, Callable[[], Running]] = {"forerun": ours, "mlx-lm": lambda: Peer(folder / "float32", folder / "mlx_lm.log")}
            for arm in sorted(arms, reverse=bool(repeat % 2)):
                played[arm].append(play(talk, scale, arms[arm]))
    return stats(played) | {"server": lines[0], "digest": digest}


def play(talk: Conversation, scale: Scale, start: Callable[[], Running]) -> list[Turn]:
    """The five turns on servers that `start` starts."""
    server, turns, messages = _warm(start()), list[Turn](), talk.opening
    try:
        for step, continuation in zip(STEPS, (*talk.continuations, ()), strict=True):
            if step.before != "nothing":
                server.wait_until_written()
                (server.stop if step.before == "SIGTERM" else server.kill)()
                server = _warm(start())
            turns.append(ask(server.url, step.name, list(messages), list(talk.tools), scale.answer_tokens))
            messages = (*messages, {"role": "assistant", "content": turns[-1].text}, *continuation)
    finally:
        server.kill()
    return turns


def ask(url: str, name: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], num: int) -> Turn:
    """One request, greedy, streamed."""
    body = {"messages": messages, "max_tokens": num, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"model": "default_model", "chat_template_kwargs": {"enable_thinking": False}} | ({"tools": tools} if tools else {})
    begun_s, times, text, usage = time.perf_counter(), list[float](), list[str](), dict[str, Any]()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as response:
        for line in response.iter_lines():
            chunk = json.loads(line[6:]) if line.startswith("data: {") else {}
            usage = chunk.get("usage") or usage
            if piece := "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ())):
                times.append(time.perf_counter())
                text.append(piece)
    decoded = usage["completion_tokens"] - 1
    return Turn(name, times[0] - begun_s, decoded / (times[-1] - times[0]), usage["prompt_tokens"], "".join(text))


def stats(played: dict[str, list[list[Turn]]]) -> dict[str, Any]:
    """Medians of every turn, and the one ratio that counts, over the repeats."""

    def median(arm: str, index: int, value: Callable[[Turn], float]) -> float:
        return statistics.median(value(turns[index]) for turns in played[arm])

    rows = [
        {"turn": step.name, "path": step.path, "context": played["forerun"][0][i].prompt_tokens}
        | {f"{arm} first_s": median(arm, i, lambda turn: turn.first_s) for arm in played}
        | {f"{arm} decode_tok_per_s": median(arm, i, lambda turn: turn.decode_tok_per_s) for arm in played}
        for i, step in enumerate(STEPS)
    ]
    sums = {arm: [sum(turn.first_s for turn in turns if turn.turn in RESTORED) for turns in runs] for arm, runs in played.items()}
    ratios = [ours / theirs for ours, theirs in zip(sums["forerun"], sums["mlx-lm"], strict=True)]
    same = sum(a.text == b.text for ours, theirs in zip(*played.values(), strict=True) for a, b in zip(ours, theirs, strict=True))
    samples = {
        arm: [[{"first_s": t.first_s, "decode_tok_per_s": t.decode_tok_per_s} for t in turns] for turns in runs]
        for arm, runs in played.items()
    }
    return {"restored_ratio": statistics.median(ratios), "ratios": ratios, "same_answers": same, "turns": rows, "samples": samples}


def markdown(result: dict[str, Any]) -> str:
    """The turns as a Markdown table."""
    head = ("turn", "path", "context", "first token s", "mlx-lm s", "decode tok/s", "mlx-lm tok/s")
    lines = [
        (
            row["turn"],
            row["path"],
            f"{row['context']:,}",
            *(f"{row[f'{arm} first_s']:.2f}" for arm in ("forerun", "mlx-lm")),
            *(f"{row[f'{arm} decode_tok_per_s']:.0f}" for arm in ("forerun", "mlx-lm")),
        )
        for row in result["turns"]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *lines))


def in_float32(folder: Path) -> str:
    """A copy of the bundled model with weights in float32; returns the digest of the original."""
    import mlx.core as mx

    from forerun.kernels import arithmetic
    from forerun.models.load import load

    folder.mkdir()
    for path in MODEL.iterdir():
        if path.suffix in (".json", ".jinja"):
            (folder / path.name).write_text(path.read_text().replace('"dtype": "bfloat16"', '"dtype": "float32"'))
    weights: Any = mx.load(str(MODEL / "model.safetensors"))
    mx.save_safetensors(str(folder / "model.safetensors"), {name: each.astype(mx.float32) for name, each in weights.items()})
    here = arithmetic.here()
    return load(MODEL, here.numerics, here.dtype, lambda doing, done_frac: None).digest


def _warm(server: Running) -> Running:
    ask(server.url, "", [{"role": "user", "content": "Hello!"}], [], 8)
    return server


def openblas() -> str:
    """The OpenBLAS of the system."""
    if (name := find_library("openblas")) is None:
        raise ForerunError("mlx-lm would run on the slow BLAS of the MLX wheel", hint="install an OpenBLAS: libopenblas0-pthread on Debian")
    return name


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
