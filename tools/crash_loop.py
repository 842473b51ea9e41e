"""Kill a process that holds a bank, over and over: what comes back must be right to the last bit, and every byte accounted for.

    python tools/crash_loop.py [--cycles 1000] [--seed 0] [--out FILE]

Each cycle a child opens the bank and takes turns of a few conversations on a tiny random model under `reference` numerics, and compares the
logits after every prompt with those of the same prompt read from nothing; it is killed (SIGKILL) at a random moment. Exit code 1 if a logit
was wrong, a byte is unaccounted for, or a request was not served. Run it from the root of the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
CONVERSATIONS = 4
LONGEST_LIFE_S = 0.5
MOST_TOKENS = 400
RAM_BYTES, DISK_BYTES = 200_000, 12 << 20


def main() -> int:
    """Run the cycles, print and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = loop(Path(folder), asked.cycles, asked.seed)
    print(json.dumps(found))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(found[fault] for fault in ("wrong_logits", "unaccounted", "failed")))


def loop(folder: Path, cycles: int, seed: int) -> dict[str, int]:
    """What the children reported, summed up."""
    rng, found = random.Random(seed), Counter[str]()
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--children", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()) as nursery:
        for cycle in range(cycles):
            found += cycle_of(nursery, cycle, rng.uniform(0, LONGEST_LIFE_S))
        _stream(nursery.stdin).close()
    names = ("opened", "turns", "reused_turns", "killed_at_work", "wrong_logits", "unaccounted", "failed")
    return {"cycles": cycles, "seed": seed, **{name: found[name] for name in names}}


def cycle_of(nursery: subprocess.Popen[str], number: int, life_s: float) -> Counter[str]:
    """Let a child live so long, counted from when its bank is open, and kill it. Returns what it reported."""
    print(number, file=_stream(nursery.stdin), flush=True)
    lines = _stream(nursery.stdout)
    child, found = int(lines.readline()), Counter[str]()
    time.sleep(life_s)
    os.kill(child, signal.SIGKILL)
    for line in lines:
        if line.startswith("dead"):
            found["killed_at_work"] += line == "dead 9\n"
            found["failed"] += line not in ("dead 9\n", "dead 0\n")
            break
        found[line.strip()] += 1
    return found


def nurse(folder: Path) -> None:
    """Start a child for each line that is read; say its number when its bank is open, and when it is dead, of what."""
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            live(folder, int(line), writing)
        os.close(writing)
        opened = os.read(reading, 1)
        print(child, flush=True)
        print("opened" if opened else "failed", flush=True)
        os.close(reading)
        _, status = os.waitpid(child, 0)
        print("dead", status, flush=True)


def live(folder: Path, number: int, opened: int) -> None:
    """Open the bank, check its bytes, and take turns until killed."""
    import mlx.core as mx
    from tests import talking, tiny
    from tests.records import bytes_under
    from tests.running import logits, read

    bank = talking.opened(folder / "bank", ram_limit_bytes=RAM_BYTES, disk_limit_bytes=DISK_BYTES)
    disk = bank._disk
    if disk is None or not disk.wait_until_reconciled(30) or disk.num_bytes != bytes_under(folder / "bank"):
        say("unaccounted")
    os.write(opened, b"+")
    rng = random.Random(number)
    with closing(bank):
        while True:
            who = rng.randrange(CONVERSATIONS)
            told = folder / f"{who}.json"
            stored = json.loads(told.read_text()) if told.exists() else tiny.words(who, 40)
            stored = stored if len(stored) < MOST_TOKENS else stored[: rng.randrange(40, MOST_TOKENS)]
            prompt = stored + tiny.words((number, rng.random()), rng.randrange(1, 30))
            turn = talking.turn(bank, prompt, max_tokens=4)
            say("turns")
            if turn.restored.reused_tokens:
                say("reused_turns")
            if not mx.array_equal(turn.logits, logits(talking.TINY, read(talking.TINY, prompt))):
                say("wrong_logits")
            told.with_suffix(".tmp").write_text(json.dumps(turn.stored))
            told.with_suffix(".tmp").replace(told)


def say(word: str) -> None:
    """Tell the loop, in one write that a kill cannot split."""
    os.write(1, f"{word}\n".encode())


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
