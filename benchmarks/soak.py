"""Do several agents at once get right answers for hours, across disconnects, restarts and crashes, in a footprint that does not grow?

    python benchmarks/soak.py [--minutes 30] [--life-minutes 15] [--settle-minutes 5] [--clients 8] [--pause-s 0] [--ram-bytes N]
                              [--dry-run] [--out FILE]

Clients of two tenants send prompts of random length to real server processes over one folder, with and without sessions, greedy or with a
seed. They continue, fork and remove each other's conversations, and some disconnect. Each life of a server ends by SIGTERM or SIGKILL, in
turns. Every answer is compared with the bypass answer to the same request. A full server may answer 503 with Retry-After. The footprint
may grow by less than 2 % once the RAM for conversations is full and the time to settle is over: resident bytes, and MLX's active memory
without the conversations, sampled while the clients pause, nothing runs, and the server has returned the memory that it does not use.
Exit code 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evidence import evidence, model_of, write
from forerun.models.load import DEMO_MODEL
from soaking.clients import Client, Talk, Tally
from soaking.lives import GROWING, Home, Life

ENDS = ("SIGTERM", "SIGKILL")
MAX_GROWTH_FRAC = 0.02
JOIN_LIMIT_S = 240.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--life-minutes", type=float, default=15)
    parser.add_argument("--settle-minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--pause-s", type=float, default=0, help="mean pause of a client between two requests")
    parser.add_argument("--ram-bytes", type=int, default=64 << 20, help="of RAM for conversations")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would run {options.clients} clients for {options.minutes} minutes, a server for {options.life_minutes} at most")
        return
    result = measure(options)
    server = result.pop("server")
    config = {name: value for name, value in vars(options).items() if name not in ("out", "dry_run")}
    digest = model_of(DEMO_MODEL)["digest"]
    write(options.out, evidence(kernels=server["kernels"], model_digest=digest, numerics=server["numerics"], config=config) | result)
    print(json.dumps({"counts": result["counts"], "growth": result["growth"], "holds": result["holds"]}, indent=1))
    print(*result["errors"], *(str(each)[:500] for each in result["wrong"]), sep="\n")
    sys.exit(not all(result["holds"].values()))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Counts, wrong answers, errors, and each life's series."""
    stop, tally, talks = threading.Event(), Tally(), list[Talk]()
    with TemporaryDirectory() as name:
        home = Home(Path(name), ["--bank-ram-bytes", str(options.ram_bytes), "--bank-disk-bytes", "1GB"])
        clients = [Client(number, home, talks, tally, stop, options.pause_s) for number in range(options.clients)]
        for client in clients:
            client.start()
        try:
            lives(home, options, stop)
        finally:
            stop.set()
        for client in clients:
            client.join(JOIN_LIMIT_S)
        hanging = [f"{client.name} hangs" for client in clients if client.is_alive()]
        errors = [*tally.errors, *home.failures, *home.logged_errors(), *hanging]
    growth = [life.growth(60 * options.settle_minutes, options.ram_bytes) for life in home.lives]
    return {
        "server": home.lives[0].server.line,
        "counts": dict(tally.counts),
        "errors": errors,
        "wrong": tally.wrong,
        "growth": growth,
        "holds": holds(tally, errors, growth),
        "lives": [series_of(life) for life in home.lives],
    }


def lives(home: Home, options: argparse.Namespace, stop: threading.Event) -> None:
    """Servers until the time is over."""
    end_s, number = time.monotonic() + 60 * options.minutes, 0
    while (left_s := end_s - time.monotonic()) > 0:
        life_s = min(60 * options.life_minutes, left_s)
        home.run(life_s, ENDS[number % len(ENDS)], stop, is_judged=life_s > 60 * options.settle_minutes)
        number += 1


def holds(tally: Tally, errors: list[str], growth: list[dict[str, Any]]) -> dict[str, bool]:
    """What must be so. Growth is judged in lives that lasted long enough to have any."""
    grown = [each[name] for each in growth for name in GROWING if each[name] is not None]
    return {
        "answers were compared": tally.counts["compared"] > 0,
        "no wrong token": tally.counts["wrong"] == 0,
        "no server error": not errors,
        "the footprint does not grow": all(each < MAX_GROWTH_FRAC for each in grown),
    }


def series_of(life: Life) -> dict[str, Any]:
    return {"end": life.end, "series": life.series, "rests": life.rests}


if __name__ == "__main__":
    main()
