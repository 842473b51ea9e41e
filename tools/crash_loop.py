"""Kill a process that holds a bank, again and again: what is restored must be right to the last bit, and every byte accounted for.

    python tools/crash_loop.py [--cycles 1000] [--seed 0] [--out FILE]

Each cycle a child opens the bank and takes turns of a few conversations on a tiny random model under `exact` numerics, and compares the
logits after every prompt with those of a cold prefill of the same prompt; it is killed (SIGKILL) at a random moment. Exit code 1 if a logit
was wrong, a byte is unaccounted for, the folder held more than its cap and one entry, or a request was not served. After FOLDER_CYCLES it
begins with an empty folder: a folder full of recently used records stores nothing new, and then there is little to restore. Run it from the
root of the repository.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
FAULTS = ("wrong_logits", "unaccounted", "over_the_cap", "failed")
MOST_WORDS, LONGEST_WAIT_S, FOLDER_CYCLES = 10, 0.2, 40


def main() -> int:
    """Run the cycles, print and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = loop(Path(folder), options.cycles, options.seed)
    print(json.dumps(found))
    if options.out:
        options.out.write_text(json.dumps(_evidence() | found, indent=1) + "\n")
    return int(any(found[fault] for fault in FAULTS))


def loop(folder: Path, cycles: int, seed: int) -> dict[str, int]:
    """What the children reported, summed up."""
    rng, found = random.Random(seed), Counter[str]()
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--children", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()) as nursery:
        for cycle in range(cycles):
            found += cycle_of(nursery, cycle, rng)
        _stream(nursery.stdin).close()
    names = ("opened", "turns", "reused_turns", "killed_at_work", *FAULTS)
    return {"cycles": cycles, "seed": seed, **{name: found[name] for name in names}}


def cycle_of(nursery: subprocess.Popen[str], number: int, rng: random.Random) -> Counter[str]:
    """Let a child report some words (a turn is one or two), and kill it a moment later. Returns what it reported."""
    print(number, file=_stream(nursery.stdin), flush=True)
    lines, found = _stream(nursery.stdout), Counter[str]()
    child = int(lines.readline())
    for _ in range(rng.randrange(MOST_WORDS)):
        found[lines.readline().strip()] += 1
    time.sleep(rng.uniform(0, LONGEST_WAIT_S))
    os.kill(child, signal.SIGKILL)
    for line in lines:
        if line.startswith("dead"):
            found["killed_at_work" if line == "dead 9\n" else "failed"] += 1
            return found
        found[line.strip()] += 1
    raise RuntimeError("the children's process is gone")


def nurse(home: Path) -> None:
    """Start a child for each cycle, whose number is read from stdin. The child prints its id when ready; then its status is printed."""
    import forerun.bank.bank
    import forerun.decode.generate
    import forerun.models.load  # noqa: F401 - before the fork, as long as it computes nothing: a child has none of MLX's threads

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            from tests.faults.crashing import live

            folder = home / str(int(line) // FOLDER_CYCLES)
            folder.mkdir(exist_ok=True)
            live(folder, int(line))
        _, status = os.waitpid(child, 0)
        print("dead", status, flush=True)


def _evidence() -> dict[str, Any]:
    """Where, when and on what it ran."""
    sys.path.append(str(ROOT))
    evidence, here = importlib.import_module("benchmarks.evidence").evidence, importlib.import_module("forerun.kernels.arithmetic").here()
    config = {"most_words": MOST_WORDS, "longest_wait_s": LONGEST_WAIT_S, "folder_cycles": FOLDER_CYCLES}
    model = {"name": "a tiny Qwen3.5 with random weights (tests/tiny.py)"}
    found: dict[str, Any] = evidence(kernels=here.kernels, model_digest="", numerics=here.numerics.name, config=config)
    return found | {"model": model}


def _stream(given: IO[str] | None) -> IO[str]:
    assert given is not None
    return given


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


if __name__ == "__main__":
    if "--children" in sys.argv:
        nurse(Path(sys.argv[-1]))
    else:
        sys.exit(main())
