"""Starts, for each line that it reads, a child that puts, gets and deletes records until it is killed; prints the child's number.

Line: folder of the bank, file of what was done, seed. In that file: "+key" once a put has returned, "-key" before a delete begins.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from tests.records import opened, record


def work(folder: Path, done: Path, seed: int) -> None:
    """Change the bank in the folder for ever."""
    rng = random.Random(seed)
    tier = opened(folder)
    log = os.open(done, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        given = record(tokens=[rng.randrange(30)], num_bytes=rng.choice([10, 5000, 300_000]))
        if rng.random() < 0.6:
            tier.put(given)
            os.write(log, f"+{given.info.key}\n".encode())
            tier.get(given.info.key)
        else:
            os.write(log, f"-{given.info.key}\n".encode())
            tier.delete(given.info.key)


def main() -> None:
    for line in sys.stdin:
        folder, done, seed = line.split("\t")
        child = os.fork()
        if child == 0:
            work(Path(folder), Path(done), int(seed))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
