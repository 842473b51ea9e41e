"""Does a model of the real 0.8B shape load and serve on this machine: seconds, peak memory compared with the weights, prefill and decode?

python benchmarks/real_shape.py [--dry-run] [--out FILE]

The weights are random, in bfloat16, under the hub's names; drafts of such a model are never accepted, so there are none. Tokenizer and
template are the bundled model's, with more tokens. The server is started twice: the first time it computes the weights' digest, the second
time it is cached.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from evidence import evidence, model_of, write
from forerun.demo.server import Server, serve_command
from on_gpu import checkpoint
from on_gpu.shapes import SHAPES

SHAPE = "0.8B"
PROMPT_WORDS, ANSWER_TOKENS, REPEATS = 80, 12, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would serve random weights of the {SHAPE} shape and write {options.out}")
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    parameters = checkpoint.write(folder / SHAPE, SHAPES[SHAPE])
    runs = [run(folder) for _ in ("digest taken", "digest remembered")]
    config = {"sampling": "temperature 0", "answer_tokens": ANSWER_TOKENS, "draft_depth": 0}
    server = runs[0]["server"]
    head = evidence(kernels=server["kernels"], model_digest="", numerics=server["numerics"], config=config)
    model = model_of(folder / SHAPE) | {"parameters": parameters, "weight_bytes_float32": 4 * parameters}
    write(options.out, head | {"model": model, "runs": runs})
    print(json.dumps(runs, indent=1))


def run(folder: Path) -> dict[str, Any]:
    """One run of a server: seconds of its start, memory then and at the end, and the cost of its answers."""
    started_s = time.perf_counter()
    with serving(folder) as server:
        start_s, after_start = time.perf_counter() - started_s, peak_bytes(server)
        reports = [ask(server, number) for number in range(REPEATS)]
        return {
            "start_s": start_s,
            "peak_bytes_after_start": after_start,
            "peak_bytes_at_last": peak_bytes(server),
            "mlx_bytes": mlx_bytes(server),
            "reports": reports,
            "server": server.line,
        }


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    command = [*serve_command(folder / SHAPE, folder / "bank"), "--draft-depth", "0"]
    server = Server.start(command, folder / "server.log")
    try:
        yield server
        server.stop()
    finally:
        server.kill()


def peak_bytes(server: Server) -> int:
    """Peak memory of the process."""
    status = Path(f"/proc/{server.line['pid']}/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def mlx_bytes(server: Server) -> dict[str, float]:
    """MLX memory: active, cached and peak."""
    text = httpx.get(f"{server.url}/metrics").text
    return {kind: float(value) for kind, value in re.findall(r"^forerun_mlx_(\w+)_bytes (\S+)$", text, flags=re.MULTILINE)}


def ask(server: Server, number: int) -> dict[str, Any]:
    """The report of an answer to a new prompt, with bypass."""
    words = " ".join(str(number * PROMPT_WORDS + i) for i in range(PROMPT_WORDS))
    body = {"messages": [{"role": "user", "content": words}], "max_tokens": ANSWER_TOKENS, "temperature": 0, "forerun": {"bank": "bypass"}}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600)
    response.raise_for_status()
    report: dict[str, Any] = response.json()["forerun"] | {"usage": response.json()["usage"]}
    return report


if __name__ == "__main__":
    main()
