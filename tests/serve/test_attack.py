"""Against a real server process: connections without a key do not keep a client with one from being served."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from tests.serve.attack import attack, num_files, served_s, server
from tests.waiting import wait_for

from forerun.cli.serve import ACCEPTS
from forerun.serve.http_protocol import HEADERS_LIMIT_S, UNAUTHORISED_LIMIT

PAUSE_S = 0.25  # what a busy machine may add


@pytest.mark.parametrize(
    ("num_idle", "num_slow", "duration_s"), [(100, 10, 0.0), pytest.param(500, 50, 2 * HEADERS_LIMIT_S, marks=pytest.mark.long)]
)
def test_a_client_with_a_key_is_served_as_fast_as_ever(tmp_path: Path, num_idle: int, num_slow: int, duration_s: float) -> None:
    with server(tmp_path) as (process, port):
        served_s(port)
        usual_s = [served_s(port) for _ in range(15)]
        num_before = num_files(process.pid)
        with attack(port, num_idle=num_idle, num_slow=num_slow):
            attacked_s, most, end_s = [], 0, time.monotonic() + duration_s
            while len(attacked_s) < 15 or time.monotonic() < end_s:
                attacked_s.append(served_s(port))
                most = max(most, num_files(process.pid) - num_before)
                time.sleep(0.02)
        print(f"median {statistics.median(usual_s):.4f} s, attacked {statistics.median(attacked_s):.4f} s, at most {max(attacked_s):.4f} s")
        assert statistics.median(attacked_s) <= 2 * statistics.median(usual_s) + PAUSE_S
        assert most <= UNAUTHORISED_LIMIT + 4 * ACCEPTS, "some are accepted before asyncio has closed those that were evicted"
        wait_for(lambda: num_files(process.pid) <= num_before + 1)
