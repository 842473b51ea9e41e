"""Do other requests go on while a very large text is counted or refused?

A server process with the bundled model. One process streams answers, one after the other, and notes when each event comes; another asks for
`/health/live` every 50 ms. Meanwhile large texts are sent: to be counted, and to be answered although they do not fit, in both dialects. A
phase without them comes first. It holds if no event and no health response is later than LIMIT_S.

PYTHONPATH=. python benchmarks/serve_large.py [--mb N] [--rounds N] [--alone-s N] [--dry-run] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

from evidence import evidence, model_of, write
from forerun.demo.server import Server, serve_command
from forerun.models.load import DEMO_MODEL
from forerun.text.tokenizer import Tokenizer

LIMIT_S = 0.5
LINE = "2026-11-30T15:00:00Z INFO worker=3 path=/a/b/c.py line=127 ok\n"
STREAM_TOKENS = 2000
STREAM = """
import http.client, sys, time
host, body = sys.argv[1], sys.argv[2].encode()
while True:
    connection = http.client.HTTPConnection(host)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            print(time.monotonic(), flush=True)
"""
HEALTH = """
import http.client, sys, time
while True:
    start_s = time.monotonic()
    connection = http.client.HTTPConnection(sys.argv[1])
    connection.request("GET", "/health/live")
    assert connection.getresponse().read() == b'{"live":true}'
    connection.close()
    print(start_s, time.monotonic() - start_s, flush=True)
    time.sleep(max(0.0, start_s + 0.05 - time.monotonic()))
"""
ROUTES: Mapping[str, tuple[str, int]] = {
    "counted": ("/v1/messages/count_tokens", 200),
    "refused, messages": ("/v1/messages", 400),
    "refused, chat": ("/v1/chat/completions", 400),
}


class Phase(NamedTuple):
    """What was sent, from when to when, and what came of it."""

    name: str
    start_s: float
    stop_s: float
    answer: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=30, help="millions of bytes of text")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone-s", type=float, default=10.0, help="seconds without large texts")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would send {options.mb} MB to {', '.join(ROUTES)}, {options.rounds} times each, while another request streams")
        return
    with TemporaryDirectory() as folder:
        result = measure(Path(folder), options)
    print(json.dumps({name: value for name, value in result.items() if name != "samples"}, indent=1))
    settings = {name: getattr(options, name) for name in ("mb", "rounds", "alone_s")} | {"limit_s": LIMIT_S}
    write(
        options.out, evidence(kernels=result.pop("kernels"), model_digest=result.pop("digest"), numerics="exact", config=settings) | result
    )


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Per phase: the longest gap between two events of the stream, and the worst health response."""
    load_before = os.getloadavg()[0]
    server = Server.start(serve_command(DEMO_MODEL, folder / "bank"), folder / "server.log")
    try:
        host = server.url.removeprefix("http://")
        with noted(STREAM, host, stream_body(), folder / "stream") as events, noted(HEALTH, host, folder / "health") as health:
            wait_until(lambda: len(events()) > 20)
            phases = list(sent(server.url, options))
            times = {"events": events(), "health": health()}
        info = httpx.get(f"{server.url}/health").json()["model"]
    finally:
        server.kill()
    found = [figures(phase, times) for phase in phases]
    return {
        "holds": all(each["longest_gap_s"] <= LIMIT_S and each["worst_health_s"] <= LIMIT_S for each in found),
        "phases": found,
        "load_before": load_before,
        "kernels": info["kernels"],
        "digest": model_of(DEMO_MODEL)["digest"],
        "samples": samples(phases, times),
    }


def samples(phases: list[Phase], times: Mapping[str, list[list[float]]]) -> dict[str, Any]:
    """When each phase began, each event came and each health request was sent, and how long its response took; in seconds."""
    zero_s = phases[0].start_s
    return {
        "phase_at_s": [round(phase.start_s - zero_s, 4) for phase in phases],
        "event_at_s": [round(at - zero_s, 4) for (at,) in times["events"]],
        "health_at_s": [round(start - zero_s, 4) for start, _ in times["health"]],
        "health_took_s": [round(delay, 4) for _, delay in times["health"]],
    }


def stream_body() -> str:
    """A request for a long answer: what would end it is excluded."""
    bias = {str(token): -100 for token in Tokenizer.load(DEMO_MODEL).stop_ids}
    messages = [{"role": "user", "content": "Write a long text."}]
    return json.dumps({"messages": messages, "stream": True, "max_tokens": STREAM_TOKENS, "temperature": 1, "logit_bias": bias})


def sent(url: str, options: argparse.Namespace) -> Iterator[Phase]:
    """Nothing for a while, then each large request in turn."""
    start_s = time.monotonic()
    time.sleep(options.alone_s)
    yield Phase("alone", start_s, time.monotonic(), {})
    content = LINE * (1_000_000 * options.mb // len(LINE))
    body = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 16}).encode()
    for _ in range(options.rounds):
        for name, (route, status) in ROUTES.items():
            start_s = time.monotonic()
            answer = httpx.post(url + route, content=body, headers={"content-type": "application/json"}, timeout=600)
            assert answer.status_code == status, answer.text
            yield Phase(name, start_s, time.monotonic(), answer.json())


@contextmanager
def noted(program: str, *arguments: Any) -> Iterator[Callable[[], list[list[float]]]]:
    """A process that runs until the end; yields a function that reads its lines of numbers so far from the file, the last argument."""
    file = Path(arguments[-1])
    with file.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-S", "-c", program, *arguments[:-1]], stdout=output)
    try:
        yield lambda: [[float(each) for each in line.split()] for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        assert process.poll() is None, "a watching process failed"
    finally:
        process.kill()
        process.wait()


def figures(phase: Phase, times: Mapping[str, list[list[float]]]) -> dict[str, Any]:
    """What the two watching processes saw of a phase."""
    gaps = [b - a for (a,), (b,) in pairwise(times["events"]) if b > phase.start_s and a < phase.stop_s]
    delays = [delay for start, delay in times["health"] if start + delay > phase.start_s and start < phase.stop_s]
    return {
        "phase": phase.name,
        "took_s": phase.stop_s - phase.start_s,
        "answer": phase.answer,
        "events": len(gaps),
        "median_gap_s": statistics.median(gaps),
        "longest_gap_s": max(gaps),
        "health_polls": len(delays),
        "worst_health_s": max(delays),
    }


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    while not is_so():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
