"""A server process with an API key, clients without one that hold connections open, and the time in which a client with the key is served.

As a program it is the attack: `python -m tests.serve.attack PORT NUM_IDLE NUM_SLOW`. Some connections send nothing, the others a byte a
second of a request that has no end; a connection that the server closes is opened again within the second. A line on stdout: all are open.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEY = "secret"
PATH = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}], "stream": True})
ENDLESS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Filler: " + b"x" * 10_000


@contextmanager
def server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server process and its port; KEY is its only key."""
    (folder / "keys").write_text(f"ann:{KEY}\n")
    options = ["--port", "0", "--json", "--bank-dir", str(folder / "bank"), "--api-key-file", str(folder / "keys")]
    command = [sys.executable, "-m", "tests.serve.server_double", "serve", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
        finally:
            process.kill()


@contextmanager
def attack(port: int, *, num_idle: int, num_slow: int) -> Iterator[None]:
    """While the block runs, so many connections are held open, from a process of its own."""
    command = [sys.executable, "-m", "tests.serve.attack", *map(str, (port, num_idle, num_slow))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
        finally:
            process.kill()


def served_s(port: int) -> float:
    """Seconds in which a client with the key, on a connection of its own, gets a whole streamed answer."""
    start_s = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", PATH, BODY, {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
    response = connection.getresponse()
    assert response.status == 200
    assert response.read().endswith(b"data: [DONE]\n\n")
    connection.close()
    return time.perf_counter() - start_s


def num_files(pid: int) -> int:
    """How many files a process has open; 0 if the platform does not show them."""
    folder = Path(f"/proc/{pid}/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def hold(port: int, num_idle: int, num_slow: int) -> None:
    """Hold connections for ever."""
    slow, idle = [Connection(port) for _ in range(num_slow)], [Connection(port) for _ in range(num_idle)]
    print("open", flush=True)
    while True:
        for each in idle:
            each.keep_open()
        for each in slow:
            each.keep_open()
            each.send_byte()
        time.sleep(1)


class Connection:
    def __init__(self, port: int) -> None:
        self._port = port
        self._open()

    def _open(self) -> None:
        self._socket, self._sent = socket.create_connection(("127.0.0.1", self._port)), 0
        self._socket.setblocking(False)

    def keep_open(self) -> None:
        try:
            is_closed = self._socket.recv(4096) == b""
        except BlockingIOError:
            return
        except OSError:
            is_closed = True
        if is_closed:
            self._socket.close()
            self._open()

    def send_byte(self) -> None:
        try:
            self._sent += self._socket.send(ENDLESS[self._sent : self._sent + 1])
        except OSError:
            return


if __name__ == "__main__":
    hold(*map(int, sys.argv[1:]))
