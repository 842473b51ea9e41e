"""Do connections without an API key slow down a client that has one?

A server process with an engine that answers at once, so that all time measured is the server's. An attack from another process holds
connections open: some send nothing, the others a byte a second of a request without an end; what the server closes is opened again within a
second. Rounds without and with an attack alternate; a sample is the time of a whole streamed answer on a new connection.

PYTHONPATH=. python benchmarks/request_guard.py [--idle N] [--slow N] [--rounds N] [--requests N] [--dry-run] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.serve.attack import attack, num_files, served_s, server

from evidence import evidence, ratio_interval, write
from forerun.config import Config
from forerun.serve.http_protocol import HEADERS_LIMIT_S, STALL_LIMIT_S, UNAUTHORISED_LIMIT

PAUSE_S = 0.05  # between two requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=500, help="connections that send nothing")
    parser.add_argument("--slow", type=int, default=50, help="connections that send a byte a second")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=200, help="of a round, each way")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(
            f"would time {options.rounds} rounds of {options.requests} requests without and with {options.idle + options.slow} connections"
        )
        return
    result = measure(options)
    print(json.dumps({name: value for name, value in result.items() if name != "samples"}, indent=1))
    config = {name: getattr(options, name) for name in ("idle", "slow", "rounds", "requests")}
    config |= {"headers_limit_s": HEADERS_LIMIT_S, "keep_alive_s": Config.model_validate({}).keep_alive_s, "stall_limit_s": STALL_LIMIT_S}
    config |= {"unauthorised_limit": UNAUTHORISED_LIMIT}
    write(options.out, evidence(kernels="none", model_digest="none: an engine double", numerics="none", config=config) | result)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Samples of both arms, and how many files the server had open beyond those before the first attack."""
    samples: dict[str, list[float]] = {"alone": [], "attacked": []}
    num_open: list[int] = []
    with TemporaryDirectory() as folder, server(Path(folder)) as (process, port):
        served_s(port)
        num_before = num_files(process.pid)
        for _ in range(options.rounds):
            for name, times in samples.items():
                with attack(port, num_idle=options.idle, num_slow=options.slow) if name == "attacked" else nullcontext():
                    for _ in range(options.requests):
                        times.append(served_s(port))
                        if name == "attacked":
                            num_open.append(num_files(process.pid) - num_before)
                        time.sleep(PAUSE_S)
            while num_files(process.pid) > num_before + 1:
                time.sleep(0.1)
    return {
        "median_ms": {name: 1000 * statistics.median(times) for name, times in samples.items()},
        "p99_ms": {name: 1000 * sorted(times)[int(0.99 * len(times))] for name, times in samples.items()},
        "largest_ms": {name: 1000 * max(times) for name, times in samples.items()},
        "attacked_to_alone": ratio_interval(samples["attacked"], samples["alone"]),
        "most_open_connections": max(num_open),
        "samples": {f"{name}_s": times for name, times in samples.items()},
    }


if __name__ == "__main__":
    main()
