"""A server is killed ten times at random moments of a conversation: what was on disk comes back, whole, and every byte is accounted for."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
from tests.records import bytes_under
from tests.waiting import LIMIT_S, wait_for

ROOT = Path(__file__).parents[2]
NUM_KILLS = 10
LONGEST_WAIT_S = 0.2
SYSTEM = {"role": "system", "content": "You are killed at random. " * 20}


class Nursery:
    """A process that starts one server after the other on the same folder."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self.folder = process, folder
        self.pid, self.url = 0, ""
        self._client = httpx.Client(timeout=LIMIT_S)

    def start(self) -> None:
        """Start a server and wait until it answers."""
        print(self.folder, file=_stream(self._process.stdin), flush=True)
        pid, port = _stream(self._process.stdout).readline().split()
        self.pid, self.url = int(pid), f"http://127.0.0.1:{port}"

    def kill(self) -> None:
        """Kill it, whatever it is doing."""
        os.kill(self.pid, signal.SIGKILL)

    def wait_until_dead(self) -> None:
        assert _stream(self._process.stdout).readline() == "dead\n"
        self.pid = 0

    def close(self) -> None:
        """Leave no server behind."""
        self._client.close()
        if self.pid:
            self.kill()
        _stream(self._process.stdin).close()

    def ask(self, messages: list[dict[str, Any]], bank: str = "use") -> dict[str, Any]:
        body = {"messages": messages, "max_tokens": 6, "temperature": 0, "enable_thinking": False, "forerun": {"bank": bank}}
        response = self._client.post(f"{self.url}/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def health(self) -> dict[str, Any]:
        bank: dict[str, Any] = self._client.get(f"{self.url}/health").json()["bank"]
        return bank


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.serving"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        nursery = Nursery(process, tmp_path / "bank")
        yield nursery
        nursery.close()


def _stream(given: IO[str] | None) -> IO[str]:
    assert given is not None
    return given


def next_turn(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*messages, {"role": "user", "content": f"Question {len(messages)}. " * 9}]


def talk_until_killed(nursery: Nursery, messages: list[dict[str, Any]], rng: random.Random) -> int:
    """Take some turns, adding them to `messages`, and continue until the kill, a moment later. Returns how many tokens were on disk."""
    safe_tokens, killing = 0, threading.Timer(rng.uniform(0, LONGEST_WAIT_S), nursery.kill)
    try:
        for number in count(-rng.randrange(1, 4)):
            if number == 0:
                killing.start()
            asked = next_turn(messages)
            answer = nursery.ask(asked)
            messages[:] = [*asked, answer["choices"][0]["message"]]
            if number == -1:
                wait_for(lambda: not nursery.health()["pending_writes"])
                safe_tokens = answer["usage"]["prompt_tokens"]
    except httpx.TransportError:
        killing.join()
        nursery.wait_until_dead()
    return safe_tokens


def test_ten_kills(nursery: Nursery) -> None:
    rng, messages, safe_tokens = random.Random(5), [SYSTEM], 0
    for _ in range(NUM_KILLS):
        nursery.start()
        wait_for(lambda: nursery.health()["disk_bytes"] == bytes_under(nursery.folder))  # what the kill left is repaired in the background
        asked = next_turn(messages)
        answer, plain = nursery.ask(asked), nursery.ask(asked, "bypass")
        assert answer["choices"] == plain["choices"]
        assert answer["forerun"]["reused_tokens"] >= safe_tokens - 8, answer["forerun"]["reason"]  # but for what asks for an answer
        assert nursery.health()["quarantined"] == 0
        safe_tokens = max(safe_tokens, talk_until_killed(nursery, messages, rng))
        assert safe_tokens > 0
