"""A writer is killed at random points: what was put is there, nothing damaged is served, every byte is counted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.records import bytes_under, opened
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
NUM_KILLS = 200
MOST_DONE, LONGEST_WAIT_S = 4, 0.003


@pytest.fixture
def writer() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.writer"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        stream(process.stdin).close()


def stream(given: IO[str] | None) -> IO[str]:
    assert given is not None
    return given


def kill_one(writer: subprocess.Popen[str], folder: Path, done: Path, seed: int, rng: random.Random) -> None:
    """Kill it a moment after it has done something so often; also before it has done anything."""
    num_done = num_lines(done) + rng.randrange(MOST_DONE)
    print(folder, done, seed, sep="\t", file=stream(writer.stdin), flush=True)
    child = int(stream(writer.stdout).readline())
    wait_for(lambda: num_lines(done) >= num_done)
    time.sleep(rng.uniform(0, LONGEST_WAIT_S))
    os.kill(child, signal.SIGKILL)
    assert stream(writer.stdout).readline() == "dead\n"


def num_lines(done: Path) -> int:
    return len(done.read_text().splitlines()) if done.exists() else 0


def promised(done: Path) -> set[str]:
    """Keys whose put has returned and whose delete has not begun."""
    keys: set[str] = set()
    for line in done.read_text().splitlines() if done.exists() else []:
        (keys.add if line[0] == "+" else keys.discard)(line[1:])
    return keys


def test_kill_at_random_points(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    rng = random.Random(1)
    folder, done = tmp_path / "bank", tmp_path / "done"
    left_behind = 0
    for seed in range(NUM_KILLS):
        kill_one(writer, folder, done, seed, rng)
        left_behind += len(list(folder.rglob("*.tmp")))
        tier = opened(folder)
        assert tier.num_bytes == bytes_under(folder)
        assert promised(done) <= {info.key for info in tier.index.inventory()}
        assert all(tier.get(info.key).info == info for info in tier.index.inventory())
        assert tier.quarantined == 0
        assert not list(folder.rglob("*.tmp"))
        tier.close()
    assert promised(done)
    assert left_behind > 0, "no kill met a write at work: the test shows nothing"
