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

ROOT = Path(__file__).parents[2]
NUM_KILLS = 200
LONGEST_LIFE_S = 0.06


@pytest.fixture
def writer() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.writer"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        stream(process.stdin).close()


def stream(given: IO[str] | None) -> IO[str]:
    assert given is not None
    return given


def kill_one(writer: subprocess.Popen[str], folder: Path, done: Path, seed: int, life_s: float) -> None:
    print(folder, done, seed, sep="\t", file=stream(writer.stdin), flush=True)
    child = int(stream(writer.stdout).readline())
    time.sleep(life_s)
    os.kill(child, signal.SIGKILL)
    assert stream(writer.stdout).readline() == "dead\n"


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
        kill_one(writer, folder, done, seed, rng.uniform(0, LONGEST_LIFE_S))
        left_behind += len(list(folder.rglob("*.tmp")))
        tier = opened(folder)
        assert tier.num_bytes == bytes_under(folder)
        assert promised(done) <= {info.key for info in tier.inventory()}
        assert all(tier.get(info.key).info == info for info in tier.inventory())
        assert tier.quarantined == 0
        assert not list(folder.rglob("*.tmp"))
        tier.close()
    assert promised(done)
    assert left_behind > 0, "no kill met a write at work: the test shows nothing"
